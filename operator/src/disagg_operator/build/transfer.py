"""The `--kv-transfer-config` of a role: our connector, unless the resource names another."""

import json
from typing import Any, Final

from disagg_operator.api.names import Component
from disagg_operator.build.inputs import Context
from disagg_operator.build.overlay import merge_json
from disagg_operator.build.roles import role_spec

CONNECTOR: Final = "MooncakeStoreConnector"
MODULE: Final = "mooncake_store_connector.v1"

# By these `kv_transfer_params` the router asks our connector's prefill to tell what it stores. Engines of another
# version ignore what they do not know.
HANDOFF_REQUEST: Final = '{"mooncake_store":{"v":1}}'

# Both roles may do both: decode stores what it computed itself while prefill was away, and prefill reads prefixes
# that other engines have stored.
_ROLE: Final = "kv_both"
# The role that leaves a part unable to do its work.
REFUSED_KV_ROLES: Final = {Component.PREFILL: "kv_consumer", Component.DECODE: "kv_producer"}


def derive_cache_prefix(namespace_prefix: str, kv_revision: str) -> str:
    """What is put before every key: the user's prefix, then the digest of what decides KV."""
    return f"{namespace_prefix}-{kv_revision}" if namespace_prefix else kv_revision


def build_transfer_config(context: Context, role: Component, kv_revision: str) -> dict[str, Any]:
    """The role's kv-transfer-config, its own override merged over the generated one."""
    generated: dict[str, Any] = {"kv_role": _ROLE, "kv_load_failure_policy": "recompute"}
    override = role_spec(context.spec, role).kv_transfer_config or {}
    if is_our_connector(override):
        generated |= {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": MODULE,
            "kv_connector_extra_config": {
                "cache_prefix": derive_cache_prefix(context.spec.kv_store.namespace_prefix, kv_revision)
            },
        }
    return merge_json(generated, override)


def is_our_connector(override: dict[str, Any]) -> bool:
    """Whether an override leaves our connector in place. Another connector is given none of our settings."""
    chosen = (override.get("kv_connector", CONNECTOR), override.get("kv_connector_module_path", MODULE))
    return chosen == (CONNECTOR, MODULE)


def dump_transfer_config(config: dict[str, Any]) -> str:
    """The config as one argument. The order of keys is fixed, so that equal configs roll no pods."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
