"""What a demo made on this machine, so that taking it down removes that and nothing else."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from demo.cluster import ROOT

PATH = ROOT / ".demo" / "state.json"


@dataclass
class State:
    """Facts about a demo. Each is written before the thing is made, so that a crash in between loses nothing."""

    target: str  # "local", "kind", or the name of a kubeconfig context
    made_cluster: bool = False
    made_namespace: bool = False
    made_release: bool = False
    made_crd: bool = False

    def save(self) -> None:
        """Write the state beside the checkout."""
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(json.dumps(asdict(self), indent=2) + "\n")


def load_state() -> State | None:
    """The state of the demo that is there, or None."""
    return State(**json.loads(PATH.read_text())) if PATH.exists() else None


def forget_state(path: Path = PATH) -> None:
    """The demo is gone."""
    path.unlink(missing_ok=True)
