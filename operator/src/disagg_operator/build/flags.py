"""Reads `vllm serve` flags as vLLM's own parser does, to judge them: which are the operator's, which decide KV.

vLLM takes `--flag value`, `--flag=value`, underscores for dashes, `--no-flag`, dotted parts of JSON values
(`--hf-overrides.key value`), unambiguous beginnings (`--tensor-par`), and lets the last of equal flags win.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from disagg_operator.api.engine import OWNED_FLAGS

# Short spellings of flags that matter here.
_ALIASES: Final = {
    "-q": "--quantization",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-cp": "--prefill-context-parallel-size",
}
_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")

# Flags that decide the bytes of KV or which tokens they stand for. Engines share KV only where all of these agree. The
# connector compares what vLLM made of them; this list is there to see a change before pods of two kinds meet.
KV_FLAGS: Final = frozenset(
    {
        # weights and the model's shape
        "--dtype",
        "--quantization",
        "--quantization-config",
        "--hf-overrides",
        "--hf-config-path",
        "--config-format",
        "--code-revision",
        "--load-format",
        "--model-loader-extra-config",
        "--model-impl",
        "--model-class-overrides",
        "--rope-scaling",
        "--rope-theta",
        "--max-model-len",  # models with two sets of rotary factors choose by it
        "--disable-sliding-window",
        # which tokens a text is
        "--tokenizer",
        "--tokenizer-mode",
        "--tokenizer-revision",
        # the cache
        "--kv-cache-dtype",
        "--kv-cache-dtype-skip-layers",
        "--calculate-kv-scales",
        "--block-size",
        "--prefix-caching-hash-algo",
        "--prefix-match-unit",
        "--kv-sharing-fast-prefill",
        "--swa-bounded-replay",
        "--mamba-block-size",
        "--mamba-cache-dtype",
        "--mamba-cache-mode",
        "--mamba-ssm-cache-dtype",
        "--attention-backend",
        "--attention-config",
        # how it is cut into ranks, beyond spec.<role>.parallelism
        "--decode-context-parallel-size",
        "--prefill-context-parallel-size",
        "--dcp-kv-cache-interleave-size",
        "--cp-kv-cache-interleave-size",
    }
)
# Environment that does the same.
KV_ENV: Final = frozenset({"VLLM_KV_CACHE_LAYOUT", "VLLM_MLA_DISABLE", "VLLM_ATTENTION_BACKEND"})


def _remedy(field: str) -> str:
    return f"remove it: {field.removeprefix('nothing: ')}" if field.startswith("nothing: ") else f"set {field}"


def split_flags(args: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each flag as written, its name as vLLM knows it, and its values."""
    written, values = "", list[str]()
    for arg in args:
        if arg.startswith("-") and len(arg) > 1 and not _NUMBER.fullmatch(arg):
            if written:
                yield written, _normalise(written), tuple(values)
            head, equals, value = _split_value(arg)
            written, values = head, [value] if equals else []
        else:
            values.append(arg)
    if written:
        yield written, _normalise(written), tuple(values)


def _split_value(arg: str) -> tuple[str, str, str]:
    if re.match(r"-[a-zA-Z]$", arg[:2]) and arg[:2] in _ALIASES and len(arg) > 2 and "=" not in arg:
        attached = not any(arg.startswith(alias) for alias in _ALIASES if len(alias) > 2)
        return (arg[:2], "=", arg[2:]) if attached else (arg, "", "")
    return arg.partition("=")


def _normalise(flag: str) -> str:
    if not flag.startswith("--"):
        return _ALIASES.get(flag, flag)
    name, dot, rest = flag.partition(".")
    return name.replace("_", "-") + dot + rest


def is_spelling_of(flag: str, known: str) -> bool:
    """Whether vLLM reads `flag` (normalised) as `known`: in full, by a dotted part, negated, or by its beginning."""
    base = flag.partition(".")[0]
    if base in {known, f"--no-{known[2:]}"}:
        return True
    return known.startswith("--") and len(base) > 3 and known.startswith(base) and base not in KV_FLAGS


def find_refused(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags that belong to the operator, as written, each with what to do instead."""
    for written, flag, _ in split_flags(args):
        owned = (field for known, field in OWNED_FLAGS.items() if is_spelling_of(flag, known))
        if (field := next(owned, None)) is not None:
            yield written, _remedy(field)


def derive_kv_flags(args: Sequence[str]) -> dict[str, str]:
    """Flags that decide KV, by vLLM's name, with their last value."""
    found: dict[str, str] = {}
    for _, flag, values in split_flags(args):
        base, dot, rest = flag.partition(".")
        positive = f"--{base[5:]}" if base.startswith("--no-") else base
        if positive in KV_FLAGS:
            found[positive + dot + rest] = "no" if positive != base else " ".join(values)
    return dict(sorted(found.items()))
