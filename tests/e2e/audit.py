"""What the API server's audit log says that somebody wrote."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from demo.cluster import Cluster

MUTATING = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass(frozen=True)
class Mutation:
    """One mutating request that the API server let through."""

    verb: str
    resource: str
    name: str


def mutations(cluster: Cluster, namespace: str, service_account: str, since: float) -> list[Mutation]:
    """Mutating requests of a ServiceAccount since a time (seconds since the epoch)."""
    user = f"system:serviceaccount:{namespace}:{service_account}"
    found = []
    for line in Path(cluster.audit_log).read_text().splitlines():
        entry = json.loads(line)
        when = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
        if when < since or entry["user"]["username"] != user or entry["verb"] not in MUTATING:
            continue
        target = entry.get("objectRef", {})
        found.append(Mutation(entry["verb"], target.get("resource", ""), target.get("name", "")))
    return found
