"""The checkpoints of one run, in a folder, numbered by step: the latest one, and which of them to keep.

A run's checkpoints are sub-folders whose names end in a number (``step-1000``, ``epoch=3-step=500``), with a manifest
in them; the number orders them, not the clock. Everything else in the folder is left alone, a save that is under way
included: it has no name yet.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ckpt.disk.commit import remove_whole, sweep_all
from ckpt.errors import DestinationError, NotACheckpointError
from ckpt.format.names import MANIFEST_NAME
from ckpt.reading.reader import open_checkpoint
from ckpt.saving.writer import foreign

_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What :func:`keep` left and what it removed, each in order of step."""

    kept: tuple[Path, ...]
    removed: tuple[Path, ...]


def latest(folder: Path | str, *, prefix: str = "") -> Path | None:
    """The checkpoint of the highest step in a folder; None where there is none yet.

    Args:
        folder: Where a run's checkpoints stand; it need not exist.
        prefix: What their names begin with, where several runs share the folder.

    Raises:
        CheckpointError: the newest one is damaged (its manifest, or a file's size or header). An older one is not
            taken in its place: move the damaged one away, or repair it.
        ValueError: checkpoints of several runs, whose numbers say nothing about their order.

    Example:
        >>> if newest := ckpt.latest("runs/1"):  # doctest: +SKIP
        ...     ckpt.load_into(model, newest)
    """
    found = _numbered(Path(folder), prefix)
    if not found:
        return None
    newest = found[max(found)]
    with open_checkpoint(newest, verify="none"):
        return newest


def keep(
    folder: Path | str, *, newest: int, every: int | None = None, prefix: str = "", dry_run: bool = False
) -> Retention:
    """Remove the checkpoints of a folder that :func:`steps_to_keep` does not name.

    Each one goes in one step: whoever opens it finds all of it or nothing, and who had it open keeps its bytes.
    Nothing is removed unless the latest one is whole.

    Args:
        folder: Where a run's checkpoints stand.
        newest: How many of the highest steps stay, >= 1.
        every: Steps that are multiples of this stay for good, >= 1.
        prefix: As of :func:`latest`.
        dry_run: Tell what would be removed, and remove nothing.

    Raises:
        NotACheckpointError: there is no such folder.
        DestinationError: a folder that should go holds files of others, or is a link; nothing was removed.
        CheckpointError, ValueError: as of :func:`latest`.

    Example:
        >>> ckpt.keep("runs/1", newest=3, every=1000).removed  # doctest: +SKIP
        (PosixPath('runs/1/step-10'), …)
    """
    place = Path(folder)
    if not place.is_dir():
        raise NotACheckpointError(place, "a file" if place.exists() else "nothing", expected="checkpoints in it")
    found = _numbered(place, prefix)
    staying = steps_to_keep(found, newest=newest, every=every)
    latest(place, prefix=prefix)
    removed = tuple(found[step] for step in sorted(found) if step not in staying)
    for path in removed:
        _refuse_others(path)
    if not dry_run:
        sweep_all(place)
        for path in removed:
            remove_whole(path)
    return Retention(kept=tuple(found[step] for step in sorted(staying)), removed=removed)


def steps_to_keep(steps: Iterable[int], *, newest: int, every: int | None = None) -> frozenset[int]:
    """The ``newest`` highest steps, and all multiples of ``every``.

    Raises:
        ValueError: ``newest`` or ``every`` is below 1.

    Example:
        >>> sorted(steps_to_keep(range(0, 60, 10), newest=2, every=30))
        [0, 30, 40, 50]
    """
    if newest < 1 or (every is not None and every < 1):
        raise ValueError(f"newest={newest}, every={every}; expected numbers of 1 and more")
    known = sorted(set(steps))
    return frozenset(known[-newest:]) | {step for step in known if every is not None and step % every == 0}


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """Checkpoints by their number."""
    found: dict[int, Path] = {}
    runs: dict[str, str] = {}
    for name in sorted(os.listdir(folder) if folder.is_dir() else ()):
        match, path = _NUMBERED.fullmatch(name), folder / name
        # Not by glob: it passes over what it may not look into, and an older one would seem to be the latest.
        if match is None or not name.startswith(prefix) or not (path / MANIFEST_NAME).exists():
            continue
        run, step = re.sub(r"[0-9]+", "0", match[1]), int(match[2])
        twin = found.get(step) or next((folder / other for key, other in runs.items() if key != run), None)
        if twin is not None:
            raise ValueError(
                f"'{twin.name}' and '{name}' in '{folder}' are not ordered by their numbers; "
                "expected names of one run that end in its step. Give their common prefix."
            )
        found[step], runs[run] = path, name
    return found


def _refuse_others(path: Path) -> None:
    found = "another place, being a link" if path.is_symlink() else foreign(path)
    if found is not None:
        raise DestinationError(
            f"'{path}' will not be removed: it holds {found}, expected a checkpoint and nothing else. Move it away; "
            "nothing was removed.",
            path=path,
            found=found,
        )
