"""What the pair guard says of values and pairs."""

from mooncake_store_connector.v0.guard import PairGuard, Verdict, judge_pair, judge_value


def test_values_of_a_pair_are_good() -> None:
    guard = PairGuard("m")
    kv, hidden = guard.metadata(1), guard.metadata(2**64 - 1)
    assert judge_value(kv, "m", 1) is judge_value(hidden, "m", 2**64 - 1) is Verdict.GOOD
    assert judge_pair(kv, hidden) is Verdict.GOOD


def test_each_pair_has_a_name_of_its_own() -> None:
    assert judge_pair(PairGuard("m").metadata(1), PairGuard("m").metadata(1)) is Verdict.TORN


def test_the_checksum_is_looked_at_before_the_model() -> None:
    assert judge_value(PairGuard("m").metadata(1), "m", 2) is Verdict.DAMAGED
    assert judge_value(PairGuard("m").metadata(1), "n", 2) is Verdict.DAMAGED
    assert judge_value(PairGuard("m").metadata(1), "n", 1) is Verdict.FOREIGN


def test_values_without_a_guard_are_told_apart() -> None:
    assert judge_value({}, "m", 0) is judge_value({"pair": "x", "checksum": "0"}, "m", 0) is Verdict.UNGUARDED


def test_the_length_does_not_depend_on_the_checksum() -> None:
    """The header is planned before the checksum is known."""
    guard = PairGuard("m")
    assert len(str(guard.metadata(0))) == len(str(guard.metadata(2**64 - 1)))
