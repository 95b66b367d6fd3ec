"""How much memory a pod needs, derived: the one place where the numbers are.

An engine pod holds, for each rank, a segment (lent to the store) and a transfer buffer; then /dev/shm, which is
memory of the pod; then vLLM itself:

| part                | cuda                  | cpu                                                    |
|---------------------|-----------------------|--------------------------------------------------------|
| API server          | 2 GiB a pod           | 1 GiB a pod                                            |
| engine and its rank | 4 GiB a rank          | 1 GiB a rank                                           |
| KV cache            | in the GPU            | VLLM_CPU_KVCACHE_SPACE GiB a rank; 4, and set, if unset |
| weights             | in the GPU            | not known here: a hint asks for a request by hand      |

Measured: a CPU engine of a 135M model with 1 GiB of KV cache takes about 3 GB.
"""

from decimal import Decimal
from typing import Final

from disagg_operator.api.engine import Device
from disagg_operator.api.names import ENGINE_ROLES, Component
from disagg_operator.api.resource import DisaggregatedInference, Spec
from disagg_operator.build.inputs import Counts
from disagg_operator.build.quantities import GI, parse_quantity
from disagg_operator.build.roles import count_pod_ranks, count_replica_ranks, derive_env, role_spec
from disagg_operator.build.store_config import derive_store_config

_POD_BASE: Final = {Device.CUDA: 2 * GI, Device.CPU: 1 * GI}
_RANK_BASE: Final = {Device.CUDA: 4 * GI, Device.CPU: 1 * GI}
DEFAULT_CPU_KV_CACHE_GIB: Final = 4
CPU_KV_CACHE_ENV: Final = "VLLM_CPU_KVCACHE_SPACE"

# What logs, compile caches and temporary files take of the node's disk; a download cache comes on top.
ENGINE_DISK: Final = 2 * GI
SMALL_DISK: Final = 256 << 20


def derive_store_memory(resource: DisaggregatedInference, role: Component) -> int:
    """Bytes that a pod's ranks give to the store: segments and transfer buffers. Raises ConfigError."""
    config = derive_store_config(resource)
    return count_pod_ranks(role_spec(resource.spec, role)) * (config.segment_size + config.buffer_size)


def derive_memory(resource: DisaggregatedInference, role: Component) -> int:
    """Bytes that an engine pod of a role is expected to need. Raises ConfigError or ValueError."""
    spec = resource.spec
    ranks = count_pod_ranks(role_spec(spec, role))
    device = spec.engine.device
    shared = int(parse_quantity(spec.engine.shared_memory_size))
    engine = _POD_BASE[device] + ranks * (_RANK_BASE[device] + _derive_kv_cache(spec, role))
    return derive_store_memory(resource, role) + shared + engine


def _derive_kv_cache(spec: Spec, role: Component) -> int:
    if spec.engine.device is not Device.CPU:
        return 0
    text = derive_env(spec, role).get(CPU_KV_CACHE_ENV, {}).get("value", "")
    return GI * (int(text) if text.isdigit() else DEFAULT_CPU_KV_CACHE_GIB)


def derive_pool_bytes(resource: DisaggregatedInference, counts: Counts) -> int:
    """Memory of the whole store when every wished replica is up. Raises ConfigError."""
    ranks = sum(counts.of(role) * count_replica_ranks(role_spec(resource.spec, role)) for role in ENGINE_ROLES)
    return ranks * derive_store_config(resource).segment_size


def derive_disk(cache_size: str | int | None) -> int:
    """Bytes of the node's disk that an engine pod asks for."""
    cache = parse_quantity(cache_size) if cache_size is not None else Decimal(0)
    return ENGINE_DISK + int(cache)


def read_amount(amounts: dict[str, int | str] | None, name: str) -> int | None:
    """A resource's amount in whole units, None where nothing is written. Raises ValueError where it does not parse."""
    value = (amounts or {}).get(name)
    return None if value is None else int(parse_quantity(value))
