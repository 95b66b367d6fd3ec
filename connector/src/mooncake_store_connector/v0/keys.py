"""Under which keys a sequence's KV and hidden states lie: `{hash}_{rank}` and `{hash}_hidden_{rank}`.

The hash is that of the sequence's tokens. The rank is `local_rank`, as in vLLM 0.9, with one pipeline stage whose
tensor parallel ranks share a node; else `pp{stage}of{stages}_tp{rank}of{ranks}`, as local ranks then repeat or name
stages. With `cache_prefix`, `{cache_prefix}@` stands before: 64 bits of hash name neither the model nor its form.

Pure, and without torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class SequenceKeys:
    """The two keys of one sequence on one rank."""

    kv: str
    hidden: str


@dataclass(frozen=True)
class Keyspace:
    """What stands before and behind a sequence's hash. Ranks that hold different KV have different keyspaces."""

    rank_part: str
    prefix: str = ""

    def keys_of(self, tokens_hash: int) -> SequenceKeys:
        """The keys of the sequence whose tokens have this hash."""
        head = f"{self.prefix}@{tokens_hash}" if self.prefix else f"{tokens_hash}"
        return SequenceKeys(f"{head}_{self.rank_part}", f"{head}_hidden_{self.rank_part}")


def describe_rank(rank: int, local_rank: int, tp_size: int, pp_size: int) -> str:
    """The part of the keys that names the rank."""
    stage, tp_rank = rank // tp_size % pp_size, rank % tp_size
    # On the node where the group begins, the local rank is at least the rank in the group; on later nodes it is less.
    if pp_size == 1 and local_rank >= tp_rank:
        return str(local_rank)
    return f"pp{stage}of{pp_size}_tp{tp_rank}of{tp_size}"
