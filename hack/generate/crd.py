"""The CRD under crds/."""

from pathlib import Path

import yaml
from disagg_operator.api import names
from disagg_operator.api.crd import build_crd

HEADER = "# Made by `make generate` from operator/src/disagg_operator/api. Do not edit.\n"


def crd_text() -> str:
    """The CRD as YAML."""
    return HEADER + yaml.safe_dump(build_crd(), sort_keys=False, width=118)


def outputs(root: Path) -> dict[Path, str]:
    """The one file."""
    return {root / "crds" / f"{names.GROUP}_{names.PLURAL}.yaml": crd_text()}
