"""Resources as a user writes them."""

from typing import Any

Json = dict[str, Any]

API_VERSION = "inference.disagg.io/v1alpha1"
KIND = "DisaggregatedInference"


def resource(name: str = "llama", /, **spec: Any) -> Json:
    """A resource with the given fields of spec; a model is filled in."""
    full = {"model": {"uri": "hf://org/model"}, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": full}


def at(path: str, value: Any) -> Json:
    """Nested maps that hold one value: `at("a.b", 1)` is {"a": {"b": 1}}."""
    head, _, rest = path.partition(".")
    return {head: at(rest, value) if rest else value}
