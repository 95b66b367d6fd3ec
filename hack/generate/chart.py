"""What the Helm chart takes from elsewhere: the CRD, the operator's rights, the schema and table of its values."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from disagg_operator.kube import rights

from generate import crd
from generate.values import build_schema, build_table, read_values

CHART: Final = Path("charts/disaggregated-inference-operator")
_BEGIN: Final = "<!-- values: written by `make generate` from values.yaml -->\n"
_END: Final = "<!-- end of values -->\n"
_RIGHTS_HEADER: Final = (
    "{{- /* Made by `make generate` from operator/src/disagg_operator/kube/rights.py. Do not edit. */ -}}\n"
)


def rights_text() -> str:
    """Named templates with RBAC rules, one for each scope; the reason of a right is a comment above it."""
    scopes = {"own": rights.OWN_NAMESPACE, "namespaced": rights.NAMESPACED, "cluster": rights.CLUSTER}
    return _RIGHTS_HEADER + "".join(_define(f"disagg.rights.{scope}", table) for scope, table in scopes.items())


def _define(name: str, table: Sequence[rights.Right]) -> str:
    lines = [f'{{{{- define "{name}" -}}}}']
    for right in table:
        lines += [
            f"# {right.reason}",
            f"- apiGroups: [{json.dumps(right.group)}]",
            f"  resources: [{', '.join(right.resources)}]",
            f"  verbs: [{', '.join(right.verbs)}]",
        ]
    return "\n".join([*lines, "{{- end }}\n"])


def with_table(readme: str, table: str) -> str:
    """The README with the table between its two marks. Raises ValueError where a mark is missing."""
    before, _, rest = readme.partition(_BEGIN)
    _, mark, after = rest.partition(_END)
    if not mark:
        raise ValueError(f"the chart's README.md lacks the lines {_BEGIN.strip()!r} and {_END.strip()!r}")
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"


def outputs(root: Path) -> dict[Path, str]:
    """Every file of the chart that is made from something else."""
    chart = root / CHART
    values = read_values((chart / "values.yaml").read_text())
    schema = build_schema(values, "Values of the chart disaggregated-inference-operator")
    readme = chart / "README.md"
    return {
        **{chart / "files" / "crds" / path.name: text for path, text in crd.outputs(root).items()},
        chart / "templates" / "_rights.tpl": rights_text(),
        chart / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        readme: with_table(readme.read_text(), build_table(values)),
    }
