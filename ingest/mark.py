"""What a reader puts in the place of a value that it knows to be wrong: the reason, and what was found.

Validation cannot tell a header line from a word among numbers, nor a short line from a cell that is None; who reads the
file can.
"""


class Mark(str):
    """Says what was found; ``reason`` is one of ``validate.REASONS``."""

    __slots__ = ("reason",)
    reason: str

    def __new__(cls, found: str, *, reason: str) -> "Mark":
        """A text that carries its reason."""
        mark = super().__new__(cls, found)
        mark.reason = reason
        return mark
