"""What is wrong with a checkpoint: one exception, told apart by a stable word.

The words are those of ``docs/formats/vectors/README.md``; each names a class of lie, not a line of code, so that other
readers can map their own errors to them.
"""

from __future__ import annotations


class FaultError(ValueError):
    """The checkpoint breaks a rule of the format.

    Args:
        kind: The stable word, such as ``chunk-crc``.
        sentence: What was found and what was expected.
    """

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(f"{kind}: {sentence}")
        self.kind = kind


def demand(condition: bool, kind: str, sentence: str) -> None:
    """Raise the fault unless the condition holds."""
    if not condition:
        raise FaultError(kind, sentence)
