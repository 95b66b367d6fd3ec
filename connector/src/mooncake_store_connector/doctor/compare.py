"""Would two engines share KV, and if not, why: their descriptors side by side. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from mooncake_store_connector.descriptor import Descriptor

_ABSENT: Final = "(not there)"
_MODEL: Final = "serve the same model, with the same options, on both"
_UNKNOWN: Final = "one of the facts that decide the bytes of a block"
_MEANINGS: Final = {
    "cache_prefix": "the prefix that keeps deployments apart; give both the same cache_prefix if they may share",
    "weights": "a fingerprint of the weights, or the repository and its revision; serve the same revision on both",
    "dtype": "the model's data type; give both the same --dtype",
    "kv_dtype": "the data type of the KV cache; give both the same --kv-cache-dtype",
    "quantization": f"how weights are quantised; {_MODEL}",
    "overrides": "changes to the model's own config; give both the same --hf-overrides",
    "rope": f"how positions are encoded; {_MODEL}",
    "longest": "the longest prompt, by which some models choose their positions; give both the same --max-model-len",
    "attention": "the attention backend that was asked for; ask for the same on both",
    "layers": f"how many layers the model has; {_MODEL}",
    "block_size": "tokens in a block; give both the same --block-size",
    "hash": "how block hashes are computed; give both the same --prefix-caching-hash-algo",
    "hash_seed": "the seed of all block hashes; give both the same PYTHONHASHSEED, such as 0",
    "tp": "tensor parallelism: each rank has other heads; give both the same --tensor-parallel-size",
    "pp": "pipeline parallelism: each rank has other layers; give both the same --pipeline-parallel-size",
    "pcp": "context parallelism of prefill; give both the same",
    "dcp": "context parallelism of decode; give both the same",
    "speculative": "the method of speculative decoding; give both the same",
    "draft": "the draft model; give both the same",
    "layout": "the KV layout that was asked for; give both the same VLLM_KV_CACHE_LAYOUT",
    "kv_layout": "the KV layout that vLLM chose; run the same version and backend on both",
    "vllm": "vLLM's version, which may change how KV lies in memory; run the same on both",
}
_GROUP_MEANINGS: Final = {
    "spec": f"what vLLM says of the group's KV; {_MODEL}",
    "caches": "data types and shapes of the caches; give both the same --dtype, --kv-cache-dtype and --block-size",
    "backend": "the attention backend, which decides how KV is packed; run the same on both",
    "isa": "the CPU's instruction set, by which KV is packed; run both on machines with the same CPU features",
    "scales": f"the scales of quantised KV; {_MODEL}",
    "layers": f"how many layers of the group a rank has; {_MODEL}",
    "bytes": "bytes of a block on one rank; they follow from the rest",
}
_GROUP: Final = re.compile(r"group(\d+)\.(\w+)")


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same on both sides, and what it means for a user."""

    field: str
    first: str
    second: str
    meaning: str


def find_differences(first: Descriptor, second: Descriptor) -> list[Difference]:
    """What keeps two engines from sharing KV; nothing if their namespace is the same."""
    if first.namespace == second.namespace:
        return []
    one = {"cache_prefix": first.prefix or "(none)", **first.facts}
    other = {"cache_prefix": second.prefix or "(none)", **second.facts}
    differences = [
        Difference(name, one.get(name, _ABSENT), other.get(name, _ABSENT), meaning_of(name))
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]
    if not differences:
        meaning = "the descriptors say the same, so one of them was changed by hand, or by another version of this code"
        differences = [Difference("namespace", first.namespace, second.namespace, meaning)]
    return differences


def meaning_of(field: str) -> str:
    """What a fact is, and what to do so that it is the same."""
    if group := _GROUP.fullmatch(field):
        return f"KV group {group[1]}: {_GROUP_MEANINGS.get(group[2], _UNKNOWN)}"
    return _MEANINGS.get(field, _UNKNOWN)


def format_comparison(first: Descriptor, second: Descriptor, differences: Sequence[Difference]) -> str:
    """The verdict and its reasons as text."""
    if not differences:
        return (
            f"They share KV: both are in the namespace {first.namespace}, if their store and its tenant are the same."
        )
    count = f"{len(differences)} field{'s' if len(differences) > 1 else ''}"
    lines = [f"They share no KV: {first.namespace} and {second.namespace} differ in {count}."]
    for one in differences:
        lines += [f"{one.field}: {one.meaning}", f"  first:  {one.first}", f"  second: {one.second}"]
    return "\n".join(lines)


def format_comparison_json(first: Descriptor, second: Descriptor, differences: Sequence[Difference]) -> str:
    """The same as JSON."""
    told = {
        "share": not differences,
        "first": first.namespace,
        "second": second.namespace,
        "differences": [asdict(one) for one in differences],
    }
    return json.dumps(told, indent=2)
