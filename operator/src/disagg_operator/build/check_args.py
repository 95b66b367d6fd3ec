"""Judges the engines' flags: none may belong to the operator, none may carry a secret, both roles must agree on KV."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mooncake_store_connector.problems import Problem

from disagg_operator.api.names import ENGINE_ROLES, Component
from disagg_operator.api.resource import DisaggregatedInference, Spec
from disagg_operator.build.flags import KV_ENV, derive_kv_flags, find_refused
from disagg_operator.build.roles import derive_env, role_spec

# A token of the model hub, wherever it is written.
HUB_TOKEN: Final = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")


def find_args_problems(spec: Spec) -> Iterator[Problem]:
    """What is wrong with the flags of the shared part and of each role."""
    lists = {"spec.engine.args": spec.engine.args}
    lists |= {f"spec.{role}.args": role_spec(spec, role).args for role in ENGINE_ROLES}
    for path, args in lists.items():
        yield from _find_list_problems(path, args)
    yield from _find_differences(spec)


def _find_list_problems(path: str, args: Sequence[str]) -> Iterator[Problem]:
    for written, remedy in find_refused(args):
        yield Problem(path, f"found {written}, which the operator owns or which breaks its other objects", remedy)
    if any(HUB_TOKEN.search(arg) for arg in args):
        yield Problem(path, "found what looks like a token of the model hub", "set spec.model.tokenSecretRef")
    if args and not args[0].startswith("-"):
        remedy = "write flags only; the model is spec.model.uri"
        yield Problem(path, f"the first argument is {args[0]!r}, not a flag", remedy)


def find_pasted_tokens(resource: DisaggregatedInference) -> Iterator[Problem]:
    """Hub tokens in the raw fields, which reach manifests as they are."""
    spec = resource.spec
    raw: dict[str, Any] = {"spec.router.template": spec.router.template}
    raw["spec.kvStore.master.template"] = spec.kv_store.master.template
    for role in ENGINE_ROLES:
        raw[f"spec.{role}.template"] = role_spec(spec, role).template
        raw[f"spec.{role}.kvTransferConfig"] = role_spec(spec, role).kv_transfer_config
    for path, value in raw.items():
        if value and HUB_TOKEN.search(json.dumps(value)):
            yield Problem(path, "found what looks like a token of the model hub", "set spec.model.tokenSecretRef")


def _find_differences(spec: Spec) -> Iterator[Problem]:
    """Engines that do not agree on what decides KV would share none, and nobody would see why."""
    prefill, decode = (derive_kv_flags([*spec.engine.args, *role_spec(spec, role).args]) for role in ENGINE_ROLES)
    for flag in sorted(prefill.keys() | decode.keys()):
        if prefill.get(flag) != decode.get(flag):
            yield _differs(f"args: {flag}", prefill.get(flag), decode.get(flag), "args")
    envs = [derive_env(spec, role) for role in ENGINE_ROLES]
    for name in sorted(KV_ENV):
        values = [env[name].get("value") if name in env else None for env in envs]
        if values[0] != values[1]:
            yield _differs(f"env: {name}", values[0], values[1], "env")


def _differs(what: str, prefill: str | None, decode: str | None, field: str) -> Problem:
    told = " and ".join(
        f"spec.{role} has {'none' if value is None else repr(value)}"
        for role, value in ((Component.PREFILL, prefill), (Component.DECODE, decode))
    )
    remedy = f"it decides what KV bytes mean, so write one value into spec.engine.{field}"
    return Problem(f"spec.prefill.{what}", f"{told}", remedy)
