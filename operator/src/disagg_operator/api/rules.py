"""CEL rules of the CRD as text: how a rule is written, and the expressions that several fields share.

The API server puts the field's path before a message, so a message tells what is wrong and what would be right. Every
rule has an estimated cost and the CRD a budget; what a rule reads must therefore be bounded (maxLength, maxItems).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

JsonObject = dict[str, Any]


def rule(expression: str, message: str, **extra: str) -> JsonObject:
    """One CEL rule. `message` names what is wrong and what would be right."""
    return {"rule": expression, "message": message, **extra}


def with_rules(*rules: JsonObject) -> JsonObject:
    """JSON schema extras that attach CEL rules to a type or a field."""
    return {"x-kubernetes-validations": list(rules)}


def text_map(entries: Mapping[str, str]) -> str:
    """A CEL map of strings."""
    return "{" + ", ".join(f"{_quote(key)}: {_quote(value)}" for key, value in entries.items()) + "}"


def _quote(text: str) -> str:
    # CEL takes JSON's escapes; single quotes read better inside YAML.
    return "'" + json.dumps(text)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


# The units that mooncake_store_connector.sizes reads. `4g` is refused: tools read it differently.
SIZE_PATTERN: Final = (
    "^ *[0-9]+([.][0-9]+)?("
    "[eE][0-9]{1,2}|"  # 1e9
    " *(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?|"  # Kubernetes: 4Gi, 4G
    " *([kKmMgGtT][iI]?)?[bB]"  # vLLM and Mooncake: 4GB, 4gib, 512 b
    ") *$"
)
SIZE_FORM: Final = rule(
    f"string(self).matches('{SIZE_PATTERN}')",
    "not a size; write a quantity such as 4Gi, or bytes as an integer",
)


def size_quantity(value: str) -> str:
    """Expression of a size in a form that `quantity()` reads: no blanks, and `4GB` as `4Gi`, which is what it means.

    It holds for what SIZE_PATTERN lets in.
    """
    plain = f"string({value}).replace(' ', '')"
    units = "".join(f".replace('{unit}', '{unit}i')" for unit in "KMGT")
    binary = f"{plain}.upperAscii().replace('I', '').replace('B', ''){units}"
    return f"(string({value}).matches('[bB] *$') ? {binary} : {plain})"


def size_between(minimum: str, maximum: str, *, or_zero: bool = False) -> JsonObject:
    """The rule that a size lies in a range. It says nothing of what is no size at all: SIZE_FORM does."""
    exempt = f"!string(self).matches('{SIZE_PATTERN}')"
    if or_zero:
        exempt += " || " + is_zero_size("self")
    quantity = f"quantity({size_quantity('self')})"
    at_least = f"{quantity}.compareTo(quantity('{minimum}')) >= 0"
    at_most = f"{quantity}.compareTo(quantity('{maximum}')) <= 0"
    return rule(f"{exempt} || ({at_least} && {at_most})", f"out of range; write a size from {minimum} to {maximum}")


def is_zero_size(value: str) -> str:
    """Expression: a size is zero, in whatever spelling."""
    return f"string({value}).matches('^[ 0.]+([a-zA-Z ]|$)')"


QUANTITY_FORM: Final = rule(
    "isQuantity(string(self)) && !string(self).startsWith('-')",
    "not a quantity; write a number with a unit of Kubernetes, such as 500m, 4 or 16Gi",
)

_DOMAIN: Final = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?/"
_NAME_PART: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
RESOURCE_NAMES: Final = rule(
    f"self.all(key, key.matches('^(cpu|memory|ephemeral-storage|(hugepages-|{_DOMAIN}){_NAME_PART})$'))",
    "not a resource; write cpu, memory, ephemeral-storage, or a device with its vendor, such as nvidia.com/gpu",
)
ANNOTATION_KEYS: Final = rule(
    f"self.all(key, key.matches('^({_DOMAIN})?{_NAME_PART}$'))",
    "not the key of an annotation; write such as example.com/name",
)


_DURATION_PATTERN: Final = "^([0-9]{1,9}(ms|s)|[0-9]{1,6}[mh])+$"


def duration_between(minimum: str, maximum: str) -> tuple[JsonObject, JsonObject]:
    """The rules that a text is a duration, and lies in a range."""
    form = rule(f"self.matches('{_DURATION_PATTERN}')", "not a duration; write such as 90s, 5m, 1h30m or 500ms")
    bounds = f"duration(self) >= duration('{minimum}') && duration(self) <= duration('{maximum}')"
    return form, rule(
        f"!self.matches('{_DURATION_PATTERN}') || ({bounds})",
        f"out of range; write a duration from {minimum} to {maximum}",
    )


def is_object_name(value: str) -> str:
    """Expression: a text can be the name of an object."""
    return f"{value}.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')"


_NAME_MESSAGE: Final = "not the name of an object; use a-z, 0-9, '-' and '.', a letter or digit first and last"
OBJECT_NAME: Final = rule(is_object_name("self"), _NAME_MESSAGE)
# The API server repeats a faulty text in its message, but not a faulty object. Somebody may have written the secret
# itself where its name belongs, so the rules on references are rules on objects.
REFERENCE_NAME: Final = rule(is_object_name("self.name"), _NAME_MESSAGE, fieldPath=".name")
REFERENCE_KEY: Final = rule(
    "self.key.matches('^[-._a-zA-Z0-9]+$')",
    "not a key of a Secret; use letters, digits, '-', '_' and '.'",
    fieldPath=".key",
)
IMAGE_FORM: Final = rule(
    "self.matches('^[a-zA-Z0-9][^ \\t\\n]*$') && !self.contains('://')",
    "not an image; write such as registry.example.com/team/image:tag",
)

_HOST: Final = "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|[[][0-9A-Fa-f:.]+[]])"
HOST_PORT_PATTERN: Final = f"{_HOST}(:[0-9]{{1,5}})?"
# Other pods would reach themselves there.
LOOPBACK_PATTERN: Final = "(localhost|127[.][0-9.]+|0[.]0[.]0[.]0|[[]::1?[]])(:|/|$)"
