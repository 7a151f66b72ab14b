"""k of the last n, once for each suspect."""

import pytest

from monitors import Alarm, Judgement, Policy, State, Window, decide

POLICY = Policy(needed=3, of=4, forget_ms=60_000)


def judgement(score: float, *, root: str = "bad", model: str = "mnist", generation: int = 4) -> Judgement:
    window = Window(
        model=model,
        root=root,
        version="9",
        generation=generation,
        start_ms=0,
        end_ms=1,
        rows=100,
        requests=100,
        instances=("a:1",),
        figures={},
        class_shares={},
    )
    return Judgement(window=window, score=score, members={}, reasons=())


def alarms(scores: list[float], *, policy: Policy = POLICY, state: State | None = None, **about: str) -> list[Alarm]:
    """The alarms of one judgement a second."""
    raised = []
    state = state or State()
    for second, score in enumerate(scores):
        state, alarm = decide(state, judgement(score, **about), policy=policy, now_ms=1000 * second)
        raised += [alarm] if alarm else []
    return raised


@pytest.mark.parametrize(
    ("scores", "raised"),
    [
        ([2, 2], 0),
        ([2, 2, 2], 1),
        ([2, 0, 2, 2], 1),
        ([2, 0, 0, 2, 2], 0),
        ([0.9] * 50, 0),
        ([1.0] * 50, 0),  # above 1 is anomalous, 1 is not
        ([0, 2, 0, 2, 0, 2, 0, 2], 0),
    ],
)
def test_three_of_the_last_four_make_an_alarm(scores: list[float], raised: int) -> None:
    assert len(alarms(scores)) == raised


def test_repeated_alarms_for_one_suspect_are_one() -> None:
    assert len(alarms([2] * 500)) == 1


def test_an_alarm_says_what_to_compare_and_set() -> None:
    (alarm,) = alarms([2, 5, 3])

    assert (alarm.model, alarm.suspect_root, alarm.suspect_version, alarm.generation) == ("mnist", "bad", "9", 4)
    assert (alarm.score, alarm.at_ms) == (5, 2000)


def test_two_roots_are_counted_apart() -> None:
    state, raised = State(), []
    for second, root in enumerate(["one", "two"] * 2):
        state, alarm = decide(state, judgement(2, root=root), policy=POLICY, now_ms=1000 * second)
        raised.append(alarm)

    assert raised == [None] * 4


def test_the_same_root_under_another_model_is_another_suspect() -> None:
    state = State()
    for second in range(3):
        state, _ = decide(state, judgement(2), policy=POLICY, now_ms=second)

    _, alarm = decide(state, judgement(2, model="wine"), policy=Policy(needed=1, of=1), now_ms=4)

    assert alarm is not None


def test_a_suspect_that_was_long_gone_may_raise_an_alarm_again() -> None:
    state = State()
    for second in range(3):
        state, _ = decide(state, judgement(2), policy=POLICY, now_ms=second)

    _, soon = decide(state, judgement(2), policy=Policy(needed=1, of=1), now_ms=59_000)
    _, later = decide(state, judgement(2), policy=Policy(needed=1, of=1), now_ms=70_000)

    assert soon is None
    assert later is not None


def test_what_is_remembered_does_not_grow_with_roots_that_are_gone() -> None:
    state = State()
    for second in range(1000):
        state, _ = decide(state, judgement(0, root=str(second)), policy=POLICY, now_ms=1000 * second)

    assert len(state.roots) == 60


@pytest.mark.parametrize(("needed", "of"), [(0, 4), (5, 4)])
def test_a_policy_that_never_or_always_alarms_is_refused(needed: int, of: int) -> None:
    with pytest.raises(ValueError, match="is no policy"):
        Policy(needed=needed, of=of)
