"""The circuit breaker, by examples and as a state machine under any order of events."""

from disagg_router.breaker import Breaker, Permit, State
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def state_of(breaker: Breaker) -> State:
    """The state anew: a type checker may take an attribute for unchanged across calls."""
    return breaker.state


def test_failures_in_a_row_open_it_and_a_trial_closes_it() -> None:
    breaker = Breaker(threshold=3, cooldown=1, max_cooldown=4)
    for _ in range(2):
        assert not breaker.fail(breaker.permit(), 0)
    breaker.succeed(breaker.permit())
    for _ in range(2):
        assert not breaker.fail(breaker.permit(), 0)
    assert breaker.fail(breaker.permit(), 0)
    assert state_of(breaker) is State.OPEN
    assert not breaker.allows()
    assert not breaker.check_passed(0.5), "the cooldown is not over"
    assert breaker.check_passed(1)
    assert breaker.allows()
    trial = breaker.permit()
    assert not breaker.allows(), "one trial at a time"
    assert breaker.succeed(trial)
    assert state_of(breaker) is State.CLOSED


def test_a_failed_trial_doubles_the_cooldown_up_to_its_limit() -> None:
    breaker, now = Breaker(threshold=1, cooldown=1, max_cooldown=4), 0.0
    breaker.fail(breaker.permit(), now)
    for cooldown in (1, 2, 4, 4):
        assert not breaker.check_passed(now + cooldown - 0.01)
        now += cooldown
        assert breaker.check_passed(now)
        assert breaker.fail(breaker.permit(), now)


def test_a_lost_engine_needs_no_trial() -> None:
    breaker = Breaker(cooldown=1)
    assert breaker.lose(0)
    assert not breaker.lose(0.1)
    assert breaker.check_passed(1)
    assert state_of(breaker) is State.CLOSED


def test_what_began_before_counts_no_more() -> None:
    breaker = Breaker(threshold=1, cooldown=1)
    early, late = breaker.permit(), breaker.permit()
    breaker.fail(early, 0)
    assert not breaker.succeed(late)
    assert state_of(breaker) is State.OPEN
    breaker.check_passed(1)
    breaker.permit()
    assert not breaker.fail(late, 2)
    assert state_of(breaker) is State.HALF_OPEN


def test_a_trial_that_its_client_left_frees_the_place() -> None:
    breaker = Breaker(threshold=1, cooldown=0)
    breaker.fail(breaker.permit(), 0)
    breaker.check_passed(0)
    trial = breaker.permit()
    breaker.release(trial)
    assert breaker.allows()


def test_a_late_answer_counts_only_when_nobody_was_answered_meanwhile() -> None:
    breaker = Breaker()
    early, first = breaker.permit(), breaker.permit()
    breaker.succeed(first)
    assert not breaker.fail(early, 0, at_once=True)
    late = breaker.permit()
    assert breaker.fail(late, 0, at_once=True)
    assert breaker.state is State.OPEN


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens, an engine that answers checks and requests is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(threshold=2, cooldown=1, max_cooldown=8)
        self.now = 0.0
        self.out: list[Permit] = []

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.allows())
    @rule()
    def begin(self) -> None:
        self.out.append(self.breaker.permit())

    @precondition(lambda self: self.out)
    @rule(data=st.data(), end=st.sampled_from(["succeed", "fail", "at_once", "leave"]))
    def end(self, data: st.DataObject, end: str) -> None:
        permit = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if end == "succeed":
            self.breaker.succeed(permit)
        elif end != "leave":
            self.breaker.fail(permit, self.now, at_once=end == "at_once")
        self.breaker.release(permit)

    @rule()
    def lose(self) -> None:
        self.breaker.lose(self.now)

    @rule()
    def check(self) -> None:
        self.breaker.check_passed(self.now)

    @invariant()
    def open_lets_none_through_and_closed_all(self) -> None:
        if self.breaker.state is State.OPEN:
            assert not self.breaker.allows()
        if self.breaker.state is State.CLOSED:
            assert self.breaker.allows()

    def teardown(self) -> None:
        for permit in self.out:
            self.breaker.release(permit)
        self.breaker.check_passed(self.now + 8)
        assert self.breaker.allows()
        self.breaker.succeed(self.breaker.permit())
        assert self.breaker.state is State.CLOSED


TestAnyOrder = AnyOrder.TestCase
