"""A line on the terminal that tells how far long work is."""

import sys

from ckpt.disk.hashing import Progress

_WIDTH = 40


def progress_bar() -> Progress | None:
    """What to pass as ``progress=``: draws on stderr while that is a terminal, otherwise None."""
    if not sys.stderr.isatty():
        return None
    shown = -1

    def draw(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total if total else 100
        if percent != shown:
            shown = percent
            filled = "█" * (percent * _WIDTH // 100)
            amount = f"{done / 2**20:,.0f} of {total / 2**20:,.0f} MiB"
            print(f"\r{filled:░<{_WIDTH}} {percent:3}% {amount}", end="\n" if percent == 100 else "", file=sys.stderr)

    return draw
