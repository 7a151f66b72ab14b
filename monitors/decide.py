"""When judgements become an alarm: k of the last n, once for each suspect.

Pure: state and judgement in, state and perhaps an alarm out, the clock passed in. One bad window is noise; ``needed``
of the last ``of`` windows of a root are a fault. A root that has raised an alarm raises no second one, however long it
is still served, until it has been gone for ``forget_ms``; so an alarm names a suspect and never walks further back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from monitors.detector import Judgement, Reason

Suspect = tuple[str, str]  # model, root


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``needed`` anomalous windows of the last ``of`` make an alarm; an unseen root is forgotten after a while."""

    needed: int = 3
    of: int = 4
    forget_ms: int = 60_000

    def __post_init__(self) -> None:
        if not 1 <= self.needed <= self.of:
            raise ValueError(f"{self.needed} of the last {self.of} windows is no policy: expected 1 <= needed <= of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A confirmed anomaly: everything that a rollback needs to compare and set, and why."""

    model: str
    suspect_root: str
    suspect_version: str
    generation: int
    score: float
    reasons: tuple[Reason, ...]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is remembered of one root: its latest scores, when it was last judged, and whether it raised its alarm."""

    scores: tuple[float, ...] = ()
    judged_ms: int = 0
    alarmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered of every root that was seen lately."""

    roots: Mapping[Suspect, Seen] = field(default_factory=dict)


def decide(state: State, judgement: Judgement, *, policy: Policy, now_ms: int) -> tuple[State, Alarm | None]:
    """Take one more judgement into account."""
    suspect = (judgement.window.model, judgement.window.root)
    kept = {root: seen for root, seen in state.roots.items() if now_ms - seen.judged_ms < policy.forget_ms}
    before = kept.get(suspect, Seen())
    scores = (*before.scores, judgement.score)[-policy.of :]
    confirmed = sum(score > 1 for score in scores) >= policy.needed
    seen = replace(before, scores=scores, judged_ms=now_ms, alarmed=before.alarmed or confirmed)
    alarm = _alarm(judgement, score=max(scores), now_ms=now_ms) if confirmed and not before.alarmed else None
    return State(roots={**kept, suspect: seen}), alarm


def _alarm(judgement: Judgement, *, score: float, now_ms: int) -> Alarm:
    window = judgement.window
    return Alarm(
        model=window.model,
        suspect_root=window.root,
        suspect_version=window.version,
        generation=window.generation,
        score=score,
        reasons=judgement.reasons,
        at_ms=now_ms,
    )
