"""Judges environment variables: some belong to the operator, and secrets come by reference."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mooncake_store_connector.problems import Problem

from disagg_operator.api.base import OWNED_ENV
from disagg_operator.api.names import ENGINE_ROLES
from disagg_operator.api.resource import Spec
from disagg_operator.build.check_args import HUB_TOKEN
from disagg_operator.build.engine_pod import HASH_SEED
from disagg_operator.build.roles import dump_env, role_spec

_SEED: Final = "PYTHONHASHSEED"
_HUB_TOKENS: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
_SECRET_NAME: Final = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_KEY|CREDENTIALS?)$", re.IGNORECASE)
_NAME: Final = re.compile(r"[^=\x00-\x1f\x7f]+")
_TRANSFER_FLAG: Final = "--kv-transfer-config"
_SOURCES: Final = frozenset({"secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef"})


def find_env_problems(spec: Spec) -> Iterator[Problem]:
    """What is wrong with the environment of the shared part and of each role."""
    lists = {"spec.engine.env": spec.engine.env}
    lists |= {f"spec.{role}.env": role_spec(spec, role).env for role in ENGINE_ROLES}
    for path, entries in lists.items():
        for entry in entries:
            if entry.value is not None and entry.value_from is not None:
                yield Problem(f"{path}[{entry.name}]", "found value and valueFrom", "write one of them")
        yield from find_entry_problems(spec, path, [dump_env(entry) for entry in entries])


def find_entry_problems(spec: Spec, path: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """The same for entries as a container has them."""
    for entry in entries:
        name, value = str(entry.get("name", "")), str(entry.get("value") or "")
        for found, remedy in _judge(spec, name, value, entry.get("valueFrom")):
            yield Problem(f"{path}[{name}]", found, remedy)


def _judge(spec: Spec, name: str, value: str, source: Any) -> Iterator[tuple[str, str]]:
    if not _NAME.fullmatch(name):
        yield "not a name of a variable", "use letters, digits and underscores"
    if source is not None and (not isinstance(source, dict) or len(_SOURCES & source.keys()) != 1):
        yield "valueFrom names no source, or several", f"write one of {', '.join(sorted(_SOURCES))}"
    if name in OWNED_ENV and name != _SEED:
        yield "a variable that the operator sets", OWNED_ENV[name]
    if name == _SEED and value != HASH_SEED:
        yield (
            f"found {value!r}" if source is None else "found valueFrom",
            OWNED_ENV[_SEED],
        )
    if _TRANSFER_FLAG in value.replace("_", "-"):
        # Images elsewhere have a shell that reads flags from a variable; and $(NAME) in args would bring a second one.
        yield f"found {_TRANSFER_FLAG} in it", "set spec.<role>.kvTransferConfig: an engine has one, and no shell"
    if name == "HF_HOME" and spec.model.uri.startswith("hf://"):
        yield "a variable that the operator sets", "set spec.model.cache: downloads are kept there"
    if name in _HUB_TOKENS and (spec.model.token_secret_ref is not None or source is None):
        yield "a token of the model hub", "set spec.model.tokenSecretRef alone"
    elif source is None and _looks_secret(name, value):
        yield "a secret in plain text", "write valueFrom.secretKeyRef; a value here shows to everyone who may see pods"


def _looks_secret(name: str, value: str) -> bool:
    if HUB_TOKEN.search(value):
        return True
    is_plain = len(value) < 6 and (value.isdigit() or value.lower() in {"", "true", "false"})
    return bool(_SECRET_NAME.search(name)) and not is_plain
