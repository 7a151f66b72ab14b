"""One opened folder and the files in it, as a reader may trust them.

The folder is opened first and every file through it, so that a reader sees one checkpoint even while another process
replaces it. Only regular files are opened, no symbolic link is followed inside the folder, and nothing blocks: a FIFO
is refused like a link. Sizes are compared before a byte is read or mapped.

What the system cannot do (too many open files, no right, a disk that does not read) stays its own error, with the
path: it says nothing of the bytes that lie there.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from ckpt.disk.commit import naming, resolved
from ckpt.errors import CheckpointError, CorruptFileError, FormatError, NotACheckpointError
from ckpt.format.names import ADOPTED_SUFFIX, DELTA_NAME, MANIFEST_NAME, manifest_beside

_REOPENINGS = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Without it Linux refuses to map a file larger than memory privately. Python names the flag from 3.13 on.
_MAP_NORESERVE = 0x4000
_MAPPED_AROUND = 2 << 20  # Linux maps more of the page cache than what is touched: up to one folio of it
# What opening ends with where something else stands than a regular file, or a folder above one.
_IRREGULAR = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.ENAMETOOLONG})

T = TypeVar("T")


class IrregularFileError(OSError):
    """Something else than a regular file stands there; ``strerror`` says what."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that :func:`reading` holds open.

    ``path`` is what was asked for: the folder, or the one file in it that was adopted by itself. ``alone`` is then
    that file's name, otherwise empty.
    """

    path: Path
    descriptor: int
    alone: str = ""

    @property
    def place(self) -> Path:
        """The folder itself."""
        return self.path.parent if self.alone else self.path

    def read(self, name: str, *, at_most: int) -> bytes:
        """All bytes of a manifest or delta.

        Raises:
            NotACheckpointError: it is not there.
            FormatError: it is larger than ``at_most``.
            CorruptFileError: something else than a regular file.
            OSError: it cannot be read.
        """
        try:
            file = open_regular(name, self.descriptor, self.place)
        except FileNotFoundError:
            remedy = f"'python -m ckpt adopt {self.path}' writes it." if self.alone else "Check the path."
            if self.alone and os.access(MANIFEST_NAME, os.F_OK, dir_fd=self.descriptor):
                remedy = f"It is a file of the checkpoint '{self.place}'; name that."
            raise NotACheckpointError(self.path, self._kind(), expected=name, remedy=remedy) from None
        except IrregularFileError as error:
            raise self._no_file(name, error) from None
        with naming(self.place / name), open(file, "rb") as opened:
            size = os.fstat(file).st_size
            data = opened.read(size + 1) if size <= at_most else b""
        if max(size, len(data)) > at_most:
            raise FormatError(str(self.place / name), f"more than {at_most} bytes", f"at most {at_most} bytes")
        return data

    def view(self, name: str, *, size_bytes: int) -> memoryview:
        """The bytes of a file, mapped as writable private memory: a change stays in this process.

        Args:
            name: Relative to the folder.
            size_bytes: What it must hold.

        Raises:
            CorruptFileError: it is missing, no regular file, or of another size.
            OSError: it cannot be read, or memory is short.
        """
        with naming(self.place / name), self._file(name, size_bytes) as file:
            return _map(file.fileno(), size_bytes)

    def unread(self, name: str, *, size_bytes: int) -> "Unread":
        """A file whose bytes will be copied into memory part by part; arguments and errors as of :meth:`view`."""
        with naming(self.place / name), ExitStack() as stack:
            file = stack.enter_context(self._file(name, size_bytes))
            # Anonymous memory, so that the pages are aligned as mapped ones are.
            view = memoryview(mmap.mmap(-1, size_bytes) if size_bytes else bytearray())
            stack.pop_all()
        return Unread(folder=self, name=name, file=file, view=view)

    def _file(self, name: str, size_bytes: int) -> FileIO:
        try:
            file = FileIO(open_regular(name, self.descriptor, self.place))
        except (FileNotFoundError, IrregularFileError) as error:
            raise self._no_file(name, error) from None
        found = os.fstat(file.fileno()).st_size
        if found != size_bytes:
            file.close()
            raise self.fault(name, "the size", f"{found} bytes", f"{size_bytes} bytes")
        return file

    def fault(self, name: str, what: str, found: str, expected: str) -> CorruptFileError:
        """The error that names a file of this folder."""
        return CorruptFileError(folder=self.path, file=name, what=what, found=found, expected=expected)

    def _kind(self) -> str:
        """What the folder is, in words, where it is not what was asked for."""
        kinds = {DELTA_NAME: "a delta; 'ckpt apply' makes a checkpoint of it", MANIFEST_NAME: "a checkpoint"}
        held = () if self.alone else os.listdir(self.descriptor)
        return next((kind for name, kind in kinds.items() if name in held), "a folder without one")

    def _no_file(self, name: str, error: OSError) -> CorruptFileError:
        return self.fault(name, "the file", str(error.strerror), "a regular file")

    def was_replaced(self) -> bool:
        """Whether another folder stands at the path now."""
        try:
            return not os.path.samestat(os.stat(self.place), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An open file, and private memory for its bytes, which is zeros where it was not read yet."""

    folder: Folder
    name: str
    file: FileIO
    view: memoryview

    def read(self, start: int, end: int) -> None:
        """Copy bytes of the file to their place in memory.

        Raises:
            CorruptFileError: the file has become shorter.
            OSError: it cannot be read.
        """
        while start < end:
            with naming(self.folder.place / self.name):
                count = os.preadv(self.file.fileno(), [self.view[start:end]], start)
            if count == 0:
                raise self.folder.fault(self.name, "the size", f"{start} bytes", f"{len(self.view)} bytes")
            start += count

    def close(self) -> None:
        """Close the file; the memory stays."""
        with naming(self.folder.place / self.name):
            self.file.close()


def reading(path: Path | str, read: Callable[[Folder], T], *, expected: str) -> T:
    """What ``read`` makes of the folder at ``path``; again from the start when it was replaced meanwhile.

    Args:
        path: The folder, or a safetensors file in it that was adopted by itself; a link to it is followed.
        read: Gets the opened folder; an error that it raises counts only while the folder still stands there.
        expected: The file that makes a folder what it should be, for the message.

    Raises:
        NotACheckpointError: no folder there.
    """
    for attempt in range(_REOPENINGS):
        opened = _open(Path(path), expected)
        try:
            return read(opened)
        except (CheckpointError, OSError):  # the latter of a folder that a server has removed
            if attempt == _REOPENINGS - 1 or not opened.was_replaced():
                raise
        finally:
            with naming(Path(path)):
                os.close(opened.descriptor)
    raise AssertionError("the last attempt returns or raises")


def _open(path: Path, expected: str) -> Folder:
    try:
        return Folder(path, os.open(path, _FOLDER))
    except (FileNotFoundError, NotADirectoryError):
        manifest = path.with_name(manifest_beside(path.name))
        adopted = path.suffix == ADOPTED_SUFFIX and (path.is_file() or manifest.is_file())
        if expected != MANIFEST_NAME or not adopted:
            if not path.exists():
                raise NotACheckpointError(path, "nothing", expected=expected) from None
            remedy = "Check the path; 'python -m ckpt convert' makes a checkpoint of a .pt or .npz file."
            raise NotACheckpointError(path, "a file", expected=expected, remedy=remedy) from None
    file = resolved(path)
    return Folder(file, os.open(file.parent, _FOLDER), alone=file.name)


def open_regular(name: str, folder: int, place: Path) -> int:
    """A descriptor of a regular file below an opened folder, reached without following a link.

    Args:
        name: Relative to the folder.
        folder: Its descriptor.
        place: Its path, for messages.

    Raises:
        FileNotFoundError: nothing is there.
        IrregularFileError: something else is.
        OSError: the system cannot tell.
    """
    try:
        return _descriptor(name, folder)
    except OSError as error:
        kind = IrregularFileError if error.errno in _IRREGULAR else OSError
        found = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise kind(error.errno, found, str(place / name)) from None


def _descriptor(name: str, folder: int) -> int:
    *parents, last = PurePosixPath(name).parts
    held = os.dup(folder)
    try:
        for parent in parents:
            inner = os.open(parent, _FOLDER | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        file = os.open(last, _FILE, dir_fd=held)
    finally:
        os.close(held)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "something else than a regular file")
    return file


def _map(file: int, size: int) -> memoryview:
    if size == 0:
        return memoryview(bytearray())
    flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
    return memoryview(mmap.mmap(file, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE))


def forget(view: memoryview) -> None:
    """Let go of the pages under a part of a mapped file: it was read once and will not be soon.

    Long work stays within bounded memory so. Only for mapped files that nobody wrote to: a private change, or
    anonymous memory, would be lost.
    """
    if not len(view) or not isinstance(view.obj, mmap.mmap):
        return
    start = _address(view) - _address(memoryview(view.obj))
    first = max(start - _MAPPED_AROUND, 0) // mmap.PAGESIZE * mmap.PAGESIZE
    view.obj.madvise(mmap.MADV_DONTNEED, first, min(start + len(view) + _MAPPED_AROUND, len(view.obj)) - first)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)
