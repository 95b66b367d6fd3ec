"""The CRD under crds/."""

from pathlib import Path

import yaml
from disagg_operator.api import names
from disagg_operator.api.crd import build_crd


class _Dumper(yaml.SafeDumper):
    """Writes each part in full: anchors would make the file hard to read and to review."""

    def ignore_aliases(self, data: object) -> bool:
        return True


HEADER = "# Made by `make generate` from operator/src/disagg_operator/api. Do not edit.\n"


def crd_text() -> str:
    """The CRD as YAML."""
    return HEADER + yaml.dump(build_crd(), Dumper=_Dumper, sort_keys=False, width=118)


def outputs(root: Path) -> dict[Path, str]:
    """The one file."""
    return {root / "crds" / f"{names.GROUP}_{names.PLURAL}.yaml": crd_text()}
