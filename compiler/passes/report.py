"""What a pass says about its work: each change, and each place where it refused to change, with a reason code."""

from dataclasses import dataclass

from compiler.reasons import Reason

__all__ = ["Change", "PassReport", "Reason", "Refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A rewrite that was made: where, and what became of it."""

    site: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A rewrite that was not legal: where, and why."""

    site: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """Everything one pass did and refused, in graph order."""

    name: str
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
