"""What an area is written in: stages, comparisons, sides; and the call that a side's case hands over.

A *case* is a context manager: what it does before it yields is preparation, the ``Call`` that it yields is measured,
what follows closes what it opened. It runs in a process of its own, so it is named ("module:function") and takes
only what JSON can carry.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

Value = str | int | float | bool
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to be measured.

    Attributes:
        run: Is timed; nothing else happens meanwhile.
        units: Steps, updates or requests in one run, >= 1; seconds are given for one of them.
        figures: Asked after the run, outside the clock: numbers by name, units in the names.
        peak_bytes: Where another program does the work, its peak, which stands in place of this process's growth.
    """

    run: Callable[[], object]
    units: int = 1
    figures: Callable[[], Figures] = dict
    peak_bytes: Callable[[], int] | None = None


Case = Callable[..., AbstractContextManager[Call]]  # case(work=folder, shared=folder, **parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way of doing a thing.

    Attributes:
        name: As the table shows it.
        case: "module:function", or "script.py:function" for a script under ``peers``.
        parameters: Keyword arguments of the case, beside the folders ``work`` (its own) and ``shared`` (the stage's).
        needs: What must be installed, or the side is left out with that reason: a module, or "program:name".
        is_ours: What the project does, as opposed to a peer.
    """

    name: str
    case: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    is_ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Sides that do the same thing.

    Attributes:
        name: What they do, with its size.
        sides: Ratios are to the first one.
        note: What each includes and what it leaves out.
        most_repeats: Fewer rounds than asked for, where one takes long.
    """

    name: str
    sides: tuple[Side, ...]
    note: str
    most_repeats: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Comparisons that share what ``prepare`` leaves in the stage's folder.

    Attributes:
        name: One word.
        comparisons: In the order of the table.
        prepare: A case that is run once and not recorded.
        parameters: Given to ``prepare``.
        server: Opened around the stage in the measuring process's parent; gives parameters for every case.
    """

    name: str
    comparisons: tuple[Comparison, ...]
    prepare: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    server: Callable[[Path], AbstractContextManager[Mapping[str, Value]]] | None = None
