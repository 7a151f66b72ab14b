"""A folder, or one file, that appears whole or not at all.

The content is written into a dot-named sibling that its writer holds by ``flock``; when everything is on disk
(files and folders fsynced) one rename puts it in place and the parent is fsynced. Replacing exchanges the two
folders in one step. After a kill or a power loss readers find the old folder, the new one, or nothing; leftovers
nobody holds are removed by the next writer to the same path, or taken up by it where it does the very same work.
"""

import ctypes
import errno
import fcntl
import glob
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from ckpt.errors import DestinationError

_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_SUFFIX = ".saving"
_WORK = "unfinished"  # the file that says what a folder is to become, in those that may be taken up again
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def staged(
    path: Path | str, *, overwrite: bool, owns: Callable[[Path], str | None], work: str | None = None
) -> Iterator[Path]:
    """Give an empty folder that becomes ``path`` when the block ends without an error.

    Args:
        path: The destination; symbolic links in it are resolved first.
        overwrite: Whether an existing destination may be replaced.
        owns: Says what is foreign in an existing folder, or None when all of it may go.
        work: Names what is to be done, where that can go on with what a killed writer of the same work left: the folder
            is that writer's then. Nothing in it can be relied on, and what is not to stay must be removed.

    Raises:
        DestinationError: the destination exists (``overwrite=False``), holds foreign files, or its file system
            cannot exchange two folders in one step.
    """
    refuse_destination(path, overwrite=overwrite, owns=owns)
    final = resolved(path)
    make_folder(final.parent)
    taken_up = None if work is None else _take_up(final, work)
    sweep(final)
    staging, lock = taken_up or _hold(final)
    with naming(final):
        try:
            try:
                if work is not None and taken_up is None:
                    with open(staging / _WORK, "x") as note:
                        note.write(work)
                yield staging
                if work is not None:  # from here on the folder is what others may map
                    (staging / _WORK).unlink()
                sync_tree(staging)
                replaces = _put(staging, final, overwrite=overwrite, owns=owns)
            except BaseException:
                with suppress(OSError):  # the first error is told; the next writer sweeps what is left
                    remove_tree(staging)
                raise
            sync_folder(final.parent)  # were this to fail, the disk might still name what was replaced: it stays
            if replaces:
                _remove_replaced(staging)
                sync_folder(final.parent)
        finally:
            os.close(lock)


@contextmanager
def scratch(path: Path | str, *, work: str) -> Iterator[Path]:
    """Give a folder beside ``path``, removed when the block ends; after a kill the next writer there removes it.

    One that does the same ``work`` is given it with what is in it instead, of which nothing can be relied on.
    """
    final = Path(os.path.realpath(path))
    make_folder(final.parent)
    taken_up = _take_up(final, work)
    folder, lock = taken_up or _hold(final)
    try:
        if taken_up is None:
            (folder / _WORK).write_text(work)
        yield folder
    finally:
        try:
            remove_tree(folder)
        finally:
            os.close(lock)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system that name no file, as those of write, fsync, flock and close, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def resolved(path: Path | str) -> Path:
    """Where a path leads, symbolic links followed; the folder that a relative one counts from may be gone."""
    with naming(Path(path)):
        return Path(os.path.realpath(path))


def refuse_destination(path: Path | str, *, overwrite: bool, owns: Callable[[Path], str | None]) -> None:
    """Raise what :func:`staged` would, as far as it can be told before anything is written."""
    final = resolved(path)
    if not os.path.lexists(final):
        return
    if not overwrite:
        raise DestinationError(
            f"'{final}' exists already; expected a new path. Choose another, or move it away; ckpt.save alone replaces "
            "a checkpoint (pass overwrite=True).",
            path=final,
        )
    foreign = None if final.is_dir() and not any(final.iterdir()) else owns(final)
    if foreign:
        raise DestinationError(
            f"'{final}' will not be overwritten: it holds {foreign}, expected an empty folder or one that was written "
            "here before. Move it away, or choose another path.",
            path=final,
            found=foreign,
        )


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each durable in its own parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync_folder(folder.parent)


def sweep(final: Path) -> None:
    """Remove what killed writers to the same path left: folders that nobody holds."""
    _sweep(final.parent, glob.escape(final.name))


def sweep_all(folder: Path) -> None:
    """Remove what killed writers to any path in a folder left."""
    _sweep(folder, "*")


def _sweep(folder: Path, names: str) -> None:
    for leftover, lock in _leftovers(folder, names):
        with naming(leftover):
            try:
                sync_folder(folder)  # a writer that could not do this left what the disk may still name
                remove_tree(leftover)
            finally:
                os.close(lock)


def _leftovers(folder: Path, names: str) -> Iterator[tuple[Path, int]]:
    """What killed writers left, each held by a descriptor that is the caller's to close."""
    for leftover in folder.glob(f".{names}.{'[0-9a-f]' * 8}{_SUFFIX}"):
        try:
            lock = os.open(leftover, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            continue  # another writer swept it, or it is no writer's
        with naming(leftover):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)  # a living writer holds it
            else:
                yield leftover, lock


def _take_up(final: Path, work: str) -> tuple[Path, int] | None:
    """The folder of a killed writer that did this work, held now.

    A folder that was in its place once has no note of work any more: others may have mapped its files.
    """
    for leftover, lock in _leftovers(final.parent, glob.escape(final.name)):
        if _note(lock) == work:
            return leftover, lock
        os.close(lock)
    return None


def keep_only(folder: Path, names: Collection[str]) -> None:
    """Remove what a killed writer left in a folder that was taken up, but for some plain files of this user."""
    for entry in folder.iterdir():
        status = entry.lstat()
        ours = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
        if entry.name == _WORK or (entry.name in names and ours):
            continue
        remove_entry(entry)


def remove_entry(path: Path) -> None:
    """Remove a folder with all that is in it, or whatever else has that name; no link is followed."""
    if stat.S_ISDIR(path.lstat().st_mode):
        remove_tree(path)
    else:
        path.unlink()


def _note(folder: int) -> str | None:
    """What is noted in a folder of this user, whom nobody else can have set a trap in it."""
    if os.fstat(folder).st_uid != os.geteuid():
        return None
    try:
        descriptor = os.open(_WORK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.read(descriptor, 4096).decode("utf-8", "replace")
    except OSError:  # a folder, or a pipe
        return None
    finally:
        os.close(descriptor)


def _hold(final: Path) -> tuple[Path, int]:
    """A new staging folder and the descriptor whose lock keeps others from sweeping it."""
    while True:
        staging = final.parent / f".{final.name}.{token_hex(4)}{_SUFFIX}"
        try:
            staging.mkdir()
        except OSError as error:
            error.filename = str(final)  # the name that was asked for
            raise
        try:
            lock = os.open(staging, _FOLDER)
        except FileNotFoundError:
            continue  # another writer swept it before it was held
        with naming(staging):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if staging.exists():  # nor was it swept between the two calls above
            return staging, lock
        os.close(lock)


def _put(staging: Path, final: Path, *, overwrite: bool, owns: Callable[[Path], str | None]) -> bool:
    """Put a folder in its place; whether another one stood there, which is where the folder was then."""
    try:
        _rename(staging, final, _RENAME_NOREPLACE)
    except FileExistsError:
        refuse_destination(final, overwrite=overwrite, owns=owns)
        _exchange(staging, final)
        return True
    return False


def remove_whole(path: Path) -> None:
    """Take a folder away in one step; of a kill thereafter :func:`sweep` removes the rest."""
    aside = path.parent / f".{path.name}.{token_hex(4)}{_SUFFIX}"
    os.rename(path, aside)
    sync_folder(path.parent)
    _remove_replaced(aside)


def _remove_replaced(old: Path) -> None:
    """Remove a folder that nobody finds any more, when whoever holds it to put a file there has ended."""
    try:
        lock = os.open(old, _FOLDER)
    except FileNotFoundError:
        return  # another writer swept it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_tree(old)
    finally:
        os.close(lock)


def _exchange(staging: Path, final: Path) -> None:
    try:
        _rename(staging, final, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise DestinationError(
            f"'{final}' cannot be replaced in one step: its file system does not exchange folders "
            f"({errno.errorcode[error.errno]}). Write to a new path instead.",
            path=final,
        ) from error


def _rename(source: Path, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags)
    if result:
        number = ctypes.get_errno()
        if flags == _RENAME_NOREPLACE and number == errno.EINVAL:
            os.rename(source, target)  # NFS has no flags; a plain rename refuses a folder that is not empty, too
            return
        raise OSError(number, os.strerror(number), str(source), None, str(target))


def sync_tree(folder: Path) -> None:
    """fsync every folder below ``folder``, deepest first, and itself; its writers fsync the files."""
    for child in folder.iterdir():
        if stat.S_ISDIR(child.lstat().st_mode):
            sync_tree(child)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also when another process removes it at the same time."""

    def ignore_missing(_function: object, _path: str, info: tuple[type, BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            raise info[1]

    shutil.rmtree(folder, onerror=ignore_missing)


def place_file(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write a file that appears whole or not at all, in a folder that is there.

    Raises:
        FileExistsError: something stands there, and it is not to be replaced.
    """
    with naming(path):
        staging, lock = _hold(path)
        try:
            write_file(staging / path.name, data)
            if replace:
                os.rename(staging / path.name, path)
            else:  # unlike a rename, refused on every file system where something stands
                os.link(staging / path.name, path)
            sync_folder(path.parent)
        finally:
            try:
                remove_tree(staging)
            finally:
                os.close(lock)


def put_file(beside: Path, descriptor: int, name: str, data: bytes) -> None:
    """Put a file into a folder that is there, in the place of one of that name: whole or not at all.

    Args:
        beside: A path on the same file system, for example the folder's; the file is written in a sibling of it first.
        descriptor: The folder, opened, and held by ``flock`` so that it is not removed meanwhile.
        name: Of the file.
        data: All of its bytes.
    """
    final = resolved(beside)
    sweep(final)
    with naming(final):
        staging, lock = _hold(final)
        try:
            write_file(staging / name, data)
            os.rename(staging / name, name, dst_dir_fd=descriptor)
            os.fsync(descriptor)
        finally:
            try:
                remove_tree(staging)
            finally:
                os.close(lock)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and fsync it."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
