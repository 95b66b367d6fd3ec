"""The two digests: what decides KV (one value for both roles), and what a role's pods are (one per role).

Replica counts are in neither, nor is anything of the operator's version. docs/adr/0005-revisions.md has the reasons.
"""

import copy
import hashlib
import json
from typing import Any, Final

from disagg_operator.api.engine import RoleSpec
from disagg_operator.api.names import ENGINE_ROLES, LABEL_REVISION, Component
from disagg_operator.build.flags import KV_ENV, derive_kv_flags
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.roles import derive_env, derive_image, role_spec

# Raised when engines of one operator version may not read what engines of the one before have stored.
KV_FORMAT: Final = 1
_LENGTH: Final = 10


def digest(value: Any) -> str:
    """Short digest of plain data, the same for every order of keys. Fit for a label and for a key's prefix."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def derive_kv_revision(context: Context) -> str:
    """Digest of all that decides KV bytes, as far as the resource says it. Both roles' pods carry it."""
    spec = context.spec
    facts: dict[str, Any] = {
        "format": KV_FORMAT,
        "model": spec.model.uri,
        "revision": spec.model.revision,
        "device": spec.engine.device,
        "roles": {role.value: _derive_kv_facts(context, role) for role in ENGINE_ROLES},
    }
    if spec.model.uri.startswith("file://"):
        # The weights are part of the image, so another image may hold other weights.
        facts["images"] = sorted({derive_image(context, role) for role in ENGINE_ROLES})
    return digest(facts)


def _derive_kv_facts(context: Context, role: Component) -> dict[str, Any]:
    return {
        "flags": derive_role_kv_flags(context.spec.engine.args, role_spec(context.spec, role)),
        "env": derive_kv_env(context, role),
        "tensor": role_spec(context.spec, role).parallelism.tensor,
        "pipeline": role_spec(context.spec, role).parallelism.pipeline,
    }


def derive_role_kv_flags(shared: list[str], role: RoleSpec) -> dict[str, str]:
    """KV flags of a role's engines: the shared ones, then its own, of which the last wins."""
    return derive_kv_flags([*shared, *role.args])


def derive_kv_env(context: Context, role: Component) -> dict[str, str]:
    """Environment of a role's engines that decides KV."""
    env = derive_env(context.spec, role)
    return {name: entry.get("value", "") for name, entry in sorted(env.items()) if name in KV_ENV}


def derive_revision(template: Manifest) -> str:
    """Digest of a pod template, its own revision label left out."""
    plain = copy.deepcopy(template)
    plain["metadata"]["labels"].pop(LABEL_REVISION, None)
    return digest(plain)
