"""The router: a front that runs the two legs of a request, and `vllm-router`, which tells it what engines there are.

docs/adr/0003-router.md says why there are two, docs/router.md has their flags.
"""

from typing import Final
from urllib.parse import quote

from mooncake_store_connector.durations import parse_duration_ms
from mooncake_store_connector.sizes import parse_size

from disagg_operator.api.engine import Device
from disagg_operator.api.names import (
    LABEL_KV_REVISION,
    LABEL_NAME,
    LABEL_ROLE,
    PORT_HTTP,
    PORT_ROUTER_ADMIN,
    Component,
    child_name,
    object_labels,
    selector_labels,
)
from disagg_operator.build.containers import build_pod_spec, dump_resources, fill_requests, scratch_volume
from disagg_operator.build.engine_probes import READINESS_FAILURES, READINESS_PERIOD
from disagg_operator.build.inputs import Context, Manifest, service_host
from disagg_operator.build.memory import SMALL_DISK
from disagg_operator.build.model_source import derive_model_name
from disagg_operator.build.objects import build_object
from disagg_operator.build.overlay import merge_template
from disagg_operator.build.quantities import format_bytes
from disagg_operator.build.security import build_container_security
from disagg_operator.build.transfer import HANDOFF_REQUEST, is_our_connector

ROUTER: Final = "router"
DISCOVERY: Final = "discovery"
PORT_DISCOVERY: Final = 8101
PORT_DISCOVERY_METRICS: Final = 29000
_KEYS_DIR: Final = "/etc/disagg/api-keys"
# A leaving router takes late comers for a moment, lets answers run on, and has a little left before it is killed.
_LAME_DUCK_SECONDS: Final = 3
_DRAIN_SECONDS: Final = 600
_GRACE_SECONDS: Final = 630
_CPU_CHECK_TIMEOUT: Final = 6
# The front's own bound on the bodies it holds at once; at least two of the largest must fit.
_BUFFERED_BYTES: Final = 512 << 20
# An engine that hangs must turn NotReady before discovery gives up on it, or it is forgotten for good. Not much more:
# discovery sees nothing else meanwhile.
_STARTUP_TIMEOUT_SECONDS: Final = READINESS_PERIOD * (READINESS_FAILURES + 2)


def build_router(context: Context) -> Manifest:
    """The router's Deployment."""
    wish = context.spec.router
    spec = {
        "replicas": wish.replicas,
        "selector": {"matchLabels": selector_labels(context.name, Component.ROUTER)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": context.spec.revision_history_limit,
        "template": merge_template(_build_template(context), wish.template or {}),
    }
    name = child_name(context.name, Component.ROUTER)
    return build_object(context, "apps/v1", "Deployment", name, Component.ROUTER, spec=spec)


def _build_template(context: Context) -> Manifest:
    volumes = [scratch_volume("tmp")]
    keys = context.spec.api_key_secret_ref
    if keys is not None:
        # Not optional: without its keys a router would have to choose between all and nobody.
        items = [{"key": keys.key, "path": "keys"}]
        volumes.append({"name": "api-keys", "secret": {"secretName": keys.name, "items": items, "optional": False}})
    return {
        "metadata": {"labels": object_labels(context.name, Component.ROUTER)},
        "spec": build_pod_spec(
            context,
            Component.ROUTER,
            serviceAccountName=child_name(context.name, Component.ROUTER),
            automountServiceAccountToken=True,
            terminationGracePeriodSeconds=_GRACE_SECONDS,
            containers=[_build_front(context), _build_discovery(context)],
            volumes=volumes,
        ),
    }


def _build_front(context: Context) -> Manifest:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108  # the pod's own volume
    if context.spec.api_key_secret_ref is not None:
        mounts.append({"name": "api-keys", "mountPath": _KEYS_DIR, "readOnly": True})  # type: ignore[dict-item]
    return {
        "name": ROUTER,
        "image": context.spec.router.image or context.pins.images.router,
        "command": ["disagg-router"],
        "args": build_front_args(context),
        "ports": [
            {"name": "http", "containerPort": PORT_HTTP, "protocol": "TCP"},
            {"name": "admin", "containerPort": PORT_ROUTER_ADMIN, "protocol": "TCP"},
        ],
        "resources": _derive_resources(context, memory="256Mi"),
        "readinessProbe": {**_ask("/ready"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {**_ask("/health"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "securityContext": build_container_security(),
        "volumeMounts": mounts,
    }


def build_front_args(context: Context) -> list[str]:
    """Flags of the front."""
    wish = context.spec.router
    seconds = parse_duration_ms(wish.prefill_timeout, "spec.router.prefillTimeout") / 1000
    max_body = parse_size(wish.max_body_size, "spec.router.maxBodySize")
    args = [
        f"--discovery-url=http://127.0.0.1:{PORT_DISCOVERY}",
        f"--direct-decode-url=http://{service_host(context.resource, Component.DECODE)}:{PORT_HTTP}",
        f"--pods-url=https://kubernetes.default.svc/api/v1/namespaces/{context.namespace}/pods"
        f"?labelSelector={quote(f'{LABEL_NAME}={context.name}')}&resourceVersion=0",
        f"--pair-label={LABEL_KV_REVISION}",
        f"--model-name={derive_model_name(context.spec.model)}",
        f"--listen-port={PORT_HTTP}",
        f"--admin-port={PORT_ROUTER_ADMIN}",
        f"--prefill-timeout={seconds:g}",
        f"--max-body-size={max_body}",
        f"--lame-duck-seconds={_LAME_DUCK_SECONDS}",
        f"--drain-seconds={_DRAIN_SECONDS}",
    ]
    if context.spec.engine.device is Device.CPU:
        # A CPU engine computes on the cores that answer its health checks: late is not hung.
        args.append(f"--check-timeout={_CPU_CHECK_TIMEOUT}")
    if is_our_connector(context.spec.prefill.kv_transfer_config or {}):
        # Asks prefill to tell what it stores, which decode then waits for.
        args.append(f"--prefill-params={HANDOFF_REQUEST}")
    if 2 * max_body > _BUFFERED_BYTES:
        args.append(f"--max-buffered-bytes={2 * max_body}")
    if context.facts.ip_family == "IPv6":
        args += ["--listen-host=::", "--admin-host=::"]
    if context.spec.api_key_secret_ref is not None:
        args.append(f"--api-key-file={_KEYS_DIR}/keys")
    return args


def _build_discovery(context: Context) -> Manifest:
    selectors = [
        text
        for role in (Component.PREFILL, Component.DECODE)
        for text in (f"--{role}-selector", f"{LABEL_NAME}={context.name}", f"{LABEL_ROLE}={role}")
    ]
    return {
        "name": DISCOVERY,
        "image": context.spec.router.image or context.pins.images.router,
        "command": ["vllm-router"],
        "args": [
            "--host=127.0.0.1",
            f"--port={PORT_DISCOVERY}",
            f"--prometheus-port={PORT_DISCOVERY_METRICS}",
            "--vllm-pd-disaggregation",
            "--service-discovery",
            *selectors,
            f"--service-discovery-port={PORT_HTTP}",
            f"--service-discovery-namespace={context.namespace}",
            f"--worker-startup-timeout-secs={_STARTUP_TIMEOUT_SECONDS}",
            "--worker-startup-check-interval=1",
            "--log-level=warning",
        ],
        "resources": _derive_resources(context, memory="128Mi"),
        # The front tells when discovery is silent or plainly wrong; the data path goes on meanwhile.
        "livenessProbe": {**_ask("/discovery"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "securityContext": build_container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  # the pod's own volume
    }


def _ask(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": PORT_ROUTER_ADMIN}}


def _derive_resources(context: Context, *, memory: str) -> Manifest:
    requests = {"cpu": "100m", "memory": memory, "ephemeral-storage": format_bytes(SMALL_DISK)}
    return fill_requests(dump_resources(context.spec.router.resources), requests)
