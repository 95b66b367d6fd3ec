"""When an engine is started, ready, alive, and how it ends.

Loading and compiling may take as long as the resource says. Later, a first request of a new shape can stall
/health for more than a minute, so only three minutes of silence are taken for death.
"""

from typing import Final

from mooncake_store_connector.durations import parse_duration_ms

from disagg_operator.api.engine import RoleSpec
from disagg_operator.build.inputs import Manifest

_STARTUP_PERIOD: Final = 10
READINESS_PERIOD: Final = 5
READINESS_FAILURES: Final = 3
# Left between vLLM's own time limit and the kubelet's SIGKILL, for closing the store.
_EXIT_SECONDS: Final = 5


def build_probes(role: RoleSpec) -> Manifest:
    """The probes and the hook of an engine container."""
    health = {"httpGet": {"path": "/health", "port": "http"}}
    startups = -(-parse_duration_ms(role.startup_timeout, "startupTimeout") // (1000 * _STARTUP_PERIOD))
    fields: Manifest = {
        "startupProbe": {
            **health,
            "periodSeconds": _STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, startups),
        },
        "readinessProbe": {
            **health,
            "periodSeconds": READINESS_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": READINESS_FAILURES,
        },
        "livenessProbe": {**health, "periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 12},
    }
    if role.drain_seconds:
        # The router and kube-proxy learn of a leaving pod after it was told to leave.
        fields["lifecycle"] = {"preStop": {"sleep": {"seconds": role.drain_seconds}}}
    return fields


def derive_shutdown_timeout(role: RoleSpec) -> int:
    """Seconds that vLLM waits for its requests once it was told to end: what the hook leaves of the grace period."""
    rest = role.termination_grace_period_seconds - role.drain_seconds
    return max(1, rest - min(_EXIT_SECONDS, rest // 2))
