"""Keys of the V0 connector: those of other writers where ranks allow, and never the same for different KV."""

import pytest
from mooncake_store_connector.v0.keys import Keyspace, SequenceKeys, describe_rank


def test_keys_are_hash_and_rank() -> None:
    assert Keyspace("3").keys_of(12345) == SequenceKeys("12345_3", "12345_hidden_3")


def test_a_prefix_stands_before_all() -> None:
    assert Keyspace("0", "llama-a1").keys_of(7) == SequenceKeys("llama-a1@7_0", "llama-a1@7_hidden_0")


@pytest.mark.parametrize(
    ("rank", "local_rank", "tp", "pp", "part"),
    [
        (0, 0, 1, 1, "0"),
        (1, 1, 2, 1, "1"),
        (7, 7, 8, 1, "7"),
        # An engine of one rank beside others on a node.
        (0, 3, 1, 1, "3"),
        # A tensor parallel group over two nodes: the second begins with local rank 0 again.
        (8, 0, 16, 1, "pp0of1_tp8of16"),
        # Two stages on one node: local rank 2 is rank 0 of the second stage.
        (2, 2, 2, 2, "pp1of2_tp0of2"),
        (1, 1, 2, 2, "pp0of2_tp1of2"),
        # Two stages on two nodes: both have local rank 0.
        (0, 0, 8, 2, "pp0of2_tp0of8"),
        (8, 0, 8, 2, "pp1of2_tp0of8"),
    ],
)
def test_the_rank_in_keys(rank: int, local_rank: int, tp: int, pp: int, part: str) -> None:
    assert describe_rank(rank, local_rank, tp, pp) == part


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (8, 1), (16, 1), (32, 1), (4, 2), (8, 4), (16, 2)])
@pytest.mark.parametrize("node", [1, 4, 8, 16])
def test_no_two_ranks_of_an_engine_have_the_same(tp: int, pp: int, node: int) -> None:
    parts = [describe_rank(rank, rank % node, tp, pp) for rank in range(tp * pp)]
    assert len(set(parts)) == tp * pp
