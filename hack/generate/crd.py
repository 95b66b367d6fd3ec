"""The CRDs under crds/."""

from pathlib import Path

import yaml
from disagg_operator.api.crd import build_crd, build_scaler_crd
from disagg_operator.api.rules import JsonObject


class _Dumper(yaml.SafeDumper):
    """Writes each part in full: anchors would make the file hard to read and to review."""

    def ignore_aliases(self, data: object) -> bool:
        return True


HEADER = "# Made by `make generate` from operator/src/disagg_operator/api. Do not edit.\n"


def crd_text(crd: JsonObject) -> str:
    """A CRD as YAML."""
    return HEADER + yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=118)


def outputs(root: Path) -> dict[Path, str]:
    """A file for each."""
    return {
        root / "crds" / f"{crd['spec']['group']}_{crd['spec']['names']['plural']}.yaml": crd_text(crd)
        for crd in (build_crd(), build_scaler_crd())
    }
