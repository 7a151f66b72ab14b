"""Make a checkpoint of safetensors files that others wrote, where they lie, without writing them again.

Headers are held to every rule first; then each byte is read once for its digests; then the manifest appears beside
the files, whole. The root is the one that saving the same tensors gives. Where nothing can be written, or the files
are links into a cache, ``out`` makes a folder of clones (where the file system shares blocks) or copies.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from ckpt.adoption.files import examined, names_in, opened
from ckpt.disk.commit import naming, place_file, staged, sweep, write_file
from ckpt.disk.hashing import Progress
from ckpt.errors import DestinationError, NotACheckpointError
from ckpt.format.manifest import Manifest
from ckpt.format.names import ADOPTED_SUFFIX, MANIFEST_NAME, manifest_beside
from ckpt.format.wire import manifest_to_bytes
from ckpt.reading.payload import read_manifest
from ckpt.saving.memory import BLOCK_BYTES
from ckpt.saving.writer import durable

_FICLONE = 0x40049409  # ioctl of Linux: share the blocks of another file
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def adopt(path: Path | str, *, out: Path | str | None = None, progress: Progress | None = None) -> Manifest:
    """Give safetensors files a manifest, so that they are read, verified, patched and repaired like any checkpoint.

    Args:
        path: A ``.safetensors`` file: its manifest will lie beside it, ``x.safetensors.manifest.pb``, and the file's
            own path is the checkpoint's. Or a folder with an index, or with one such file: the manifest lies in it.
        out: A checkpoint folder to be instead, of clones or copies; links are followed.
        progress: Called with (bytes of tensors read, bytes in all).

    Returns:
        The manifest; that of files adopted before, as it stands. Its root is that of ``save`` of the same tensors.

    Raises:
        FormatError: a header or the index breaks a rule; nothing was written.
        CorruptFileError: a file that the index names is missing, or no regular file.
        DestinationError: nothing can be written there, or a file is a link: ``out`` is the remedy. Or a manifest
            stands there that states something else: the files changed since, or they are no adopted ones.
        NotACheckpointError: nothing to adopt.
    """
    source = Path(path)
    if source.is_dir():
        folder = Path(os.path.realpath(source))
        names, target = names_in(folder), folder / MANIFEST_NAME
    elif source.is_file() and source.suffix == ADOPTED_SUFFIX:
        folder, names = Path(os.path.realpath(source.parent)), [source.name]
        target = folder / manifest_beside(source.name)
    else:
        found = "another file" if source.exists() else "nothing"
        raise NotACheckpointError(source, found, expected=f"a *{ADOPTED_SUFFIX} file")
    if out is not None:
        return _adopt_copies(folder, names, out, progress)
    return _adopt_in_place(source, folder, names, target, progress)


def _adopt_in_place(
    path: Path, folder: Path, names: Sequence[str], target: Path, progress: Progress | None
) -> Manifest:
    known = os.path.lexists(target)
    links = [name for name in names if (folder / name).is_symlink()]
    if links:
        raise _elsewhere(path, f"'{links[0]}' is a link to a file elsewhere")
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        sweep(target)
    elif not known:
        raise _elsewhere(path, f"'{folder}' may not be written to")
    if known and not read_manifest(path).adopted:
        raise DestinationError(f"'{path}' is a checkpoint already; expected files that others wrote.", path=path)
    with opened(folder, names, links=False) as files:
        manifest = examined(files, progress)
        for file in files:
            with naming(folder / file.record.name):
                os.fsync(file.descriptor)  # the manifest must not outlive what it states
    if not known:
        try:
            place_file(target, manifest_to_bytes(manifest))
            return manifest
        except FileExistsError:
            pass  # another process adopted it meanwhile
        except OSError as error:
            if error.errno in _UNWRITABLE:
                raise _elsewhere(path, f"'{folder}': {error.strerror}") from error
            raise
    return _as_it_stands(path, manifest)


def _as_it_stands(path: Path, fresh: Manifest) -> Manifest:
    """The manifest at ``path``; refused when it states another content or other headers than were found."""
    known = read_manifest(path)
    if (known.root, known.files) != (fresh.root, fresh.files):
        raise DestinationError(
            f"'{path}' was adopted before with root {known.root}, found {fresh.root} now: a file changed since, or is "
            f"damaged. 'python -m ckpt verify {path}' names the bytes; if the change was meant, remove the manifest "
            "and adopt again.",
            path=path,
            found=fresh.root,
            expected=known.root,
        )
    return known


def _elsewhere(path: Path, found: str) -> DestinationError:
    return DestinationError(
        f"'{path}' cannot be adopted where it lies: {found}, expected a folder of regular files that takes a manifest. "
        "Pass out= (--out) with a folder to be; it gets clones or copies of the files.",
        path=path,
        found=found,
    )


def _adopt_copies(folder: Path, names: Sequence[str], out: Path | str, progress: Progress | None) -> Manifest:
    with (
        opened(folder, names, links=True) as files,
        staged(out, overwrite=False, owns=lambda _: "another checkpoint") as staging,
    ):
        for file in files:
            with durable(staging / file.record.name) as copy:
                _clone(file.descriptor, copy.fileno())
        with opened(staging, names, links=False) as copies:
            manifest = examined(copies, progress)
        write_file(staging / MANIFEST_NAME, manifest_to_bytes(manifest))
    return manifest


def _clone(source: int, target: int) -> None:
    """Share the blocks where the file system can; where it cannot, copy."""
    with contextlib.suppress(OSError):  # another file system, or one without clones
        fcntl.ioctl(target, _FICLONE, source)
        return
    position = 0
    while count := os.sendfile(target, source, position, BLOCK_BYTES):
        position += count
