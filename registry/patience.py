"""How long to go on asking a server that is away: a few quick tries, then for as long as the caller is willing.

A pure rule of values with the clock passed in.
"""

from dataclasses import dataclass, replace

QUICK_TRIES = 2  # a connection that the server closed while it lay idle is no outage
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """The failed tries of one call.

    Attributes:
        patience_s: How long to try again after the first failure.
        failed: How many failed.
        since_s: When the first did, by a monotonic clock.
    """

    patience_s: float
    failed: int = 0
    since_s: float = 0.0

    def fail(self, *, now_s: float) -> "Tries":
        """One more."""
        return replace(self, failed=self.failed + 1, since_s=self.since_s if self.failed else now_s)

    def is_over(self, *, now_s: float, is_away: bool) -> bool:
        """Whether to give up; a server that does not answer at all gets no quick tries."""
        quick = self.failed <= QUICK_TRIES and not is_away
        return not quick and now_s - self.since_s >= self.patience_s

    @property
    def pause_s(self) -> float:
        """Until the next try."""
        return float(min(FIRST_PAUSE_S * 2 ** (self.failed - 1), LONGEST_PAUSE_S))
