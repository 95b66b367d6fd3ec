"""A vLLM engine on the CPU, offline; a JSON call a line, see `v0/worker.py`. Run in the engines' environment.

Scheduler and, but for tensor parallelism, worker are in this process, and one engine after the other: most of the time
that an engine takes to start goes into imports.
"""

import gc
import time
from collections.abc import Sequence
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from connector.v0.worker import serve

_HITS = "vllm:external_prefix_cache_hits"


class Engine:
    """Calls to an engine."""

    def __init__(self) -> None:
        self._llm: Any = None

    def open(self, options: dict[str, Any]) -> None:
        """Start it, in the place of the one before."""
        self.close()
        assert not has_kv_transfer_group(), "a connector is left from the engine before"
        self._llm = LLM(
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=False,
            kv_cache_memory_bytes=128 << 20,
            max_num_seqs=8,
            **options,
        )

    def generate(
        self, prompts: Sequence[list[int]], max_tokens: int, params: Sequence[dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Greedy answers to all prompts at once, what goes back with them, and the tokens that came from the store."""
        before, begin = self._hits(), time.monotonic()
        outputs = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [_sampling(max_tokens, one) for one in params],
            use_tqdm=False,
        )
        return {
            "ids": [list(one.outputs[0].token_ids) for one in outputs],
            "params": [one.kv_transfer_params for one in outputs],
            "loaded": self._hits() - before,
            "seconds": round(time.monotonic() - begin, 2),
            # The engine's times are of the same clock.
            "each": [round(one.metrics.last_token_ts - begin, 3) for one in outputs],
        }

    def forget(self) -> bool:
        """Empty the engine's own prefix cache."""
        return bool(self._llm.reset_prefix_cache())

    def agent(self) -> int:
        """The process id of its agent, where the worker is in this process."""
        return int(get_kv_transfer_group()._worker._process._process.pid)

    def close(self) -> None:
        """End it, its workers and its agent."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()

    def _hits(self) -> int:
        return sum(int(one.value) for one in self._llm.get_metrics() if one.name == _HITS)


def _sampling(max_tokens: int, params: dict[str, Any] | None) -> SamplingParams:
    extra = {"kv_transfer_params": params} if params is not None else None
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False, extra_args=extra)


def _make(_: str) -> Engine:
    # Its kernels take blocks of 16 as well, and the backend asks for 32. Ranks are other processes, and keep to that.
    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(lambda _=None: [MultipleOf(16)])
    return Engine()


if __name__ == "__main__":
    serve(_make)
