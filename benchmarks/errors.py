"""What can go wrong while measuring.

    BenchmarkError
    ├── UnknownAreaError  (ValueError)  a name that the table of areas does not have
    ├── UnknownStageError (ValueError)  a name that no stage of the area has
    ├── UnknownPairError  (ValueError)  a name that the table of pairs does not have
    ├── NoGpuError                      an area that measures a GPU, where torch finds none
    └── CaseFailedError                 a process that ended without its measurements

Each says the thing, what was found, what was expected and what to do next; the facts are attributes.
"""

from collections.abc import Iterable


class BenchmarkError(Exception):
    """Anything this package raises by itself."""


class UnknownAreaError(BenchmarkError, ValueError):
    """There is no area of that name."""

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"there is no area '{name}'; expected one of: {', '.join(self.known)}.")


class UnknownStageError(BenchmarkError, ValueError):
    """The area has no stage of that name."""

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"there is no stage '{name}'; expected one of: {', '.join(self.known)}.")


class UnknownPairError(BenchmarkError, ValueError):
    """There is no pair of that name."""

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"there is no pair '{name}'; expected one of: {', '.join(self.known)}.")


class NoGpuError(BenchmarkError):
    """An area measures a GPU and there is none."""

    def __init__(self, area: str) -> None:
        self.area = area
        super().__init__(
            f"'{area}' measures a GPU: torch finds no CUDA device, expected one. "
            "Run it on a machine that has a GPU, and torch for CUDA."
        )


class CaseFailedError(BenchmarkError):
    """A measuring process failed; ``log`` is the end of what it wrote to standard error."""

    def __init__(self, cases: Iterable[str], *, found: str, log: str) -> None:
        self.cases, self.found, self.log = tuple(cases), found, log
        super().__init__(
            f"measuring {', '.join(self.cases)}: {found}, expected exit code 0 and its figures. "
            f"The end of its log:\n{log}"
        )
