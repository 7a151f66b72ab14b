"""Programs on disk: a folder with ``program.pb`` and, under ``targets/``, one package for each target.

Written to a sibling folder first and renamed, so a reader sees a whole program or none. Read without trust: framing,
then forms, then sense, then each package against its SHA-256; nothing is unpickled and no native code is loaded here.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compiler import decode, encode, framing
from compiler.backends import BACKENDS
from compiler.backends.target import Target
from compiler.definition import Definition
from compiler.errors import CorruptPackageError, InvalidProgramError
from compiler.report import Report
from compiler.validation import validate

PROGRAM_FILE: Final = "program.pb"
MAX_PACKAGE_BYTES: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything a program's folder holds, checked."""

    definition: Definition
    backend: str
    targets: tuple[Target, ...]
    packages: Mapping[str, bytes]
    report: Report


def write(contents: Contents, folder: str | Path) -> Path:
    """Write a program into ``folder``, which must not exist yet or be empty.

    Raises:
        FileExistsError: Something is there.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; a program is saved into a new folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(contents, draft)
        draft.chmod(0o777 & ~_umask())
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder


def read(folder: str | Path) -> Contents:
    """Read a program and check all of it.

    Raises:
        FileNotFoundError: There is no ``program.pb``.
        InvalidProgramError: A rule is broken; ``path`` leads to the fault.
        CorruptPackageError: A package is missing or is not the one named.
    """
    folder = Path(folder)
    if not (folder / PROGRAM_FILE).exists():
        raise FileNotFoundError(
            f"no compiled program in '{folder}': expected {PROGRAM_FILE} in it; name the folder that Program.save wrote"
        )
    content = _read(folder / PROGRAM_FILE, limit=framing.MAX_BODY_BYTES + 64)
    return unpack(content, package_of=lambda target: _package(folder, target))


def pack(contents: Contents) -> bytes:
    """The bytes of ``program.pb``, which name the packages and do not hold them."""
    message = encode.encode_program(
        contents.definition, backend=contents.backend, targets=contents.targets, report=contents.report
    )
    return framing.frame(message)


def unpack(content: bytes, *, package_of: Callable[[Target], bytes], validated: bool = False) -> Contents:
    """What ``pack`` wrote, all of it checked.

    Args:
        content: The bytes of ``program.pb``.
        package_of: Gives the package that a target names, or raises.
        validated: They are known to be those of a program that was validated, which takes up to seconds.

    Raises:
        InvalidProgramError: A rule is broken; ``path`` leads to the fault.
    """
    message = framing.unframe(content)
    definition = decode.decode_definition(message.definition)
    if not validated:
        validate(definition)
    targets = decode.decode_targets(message)
    if message.backend not in BACKENDS:
        raise InvalidProgramError(path="backend", found=repr(message.backend), expected=f"one of {sorted(BACKENDS)}")
    return Contents(
        definition=definition,
        backend=message.backend,
        targets=targets,
        packages={target.path: package_of(target) for target in targets},
        report=decode.decode_report(message),
    )


def _write(contents: Contents, draft: Path) -> None:
    _write_file(draft / PROGRAM_FILE, pack(contents))
    for path, content in contents.packages.items():
        (draft / path).parent.mkdir(exist_ok=True)
        _write_file(draft / path, content)


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read(path: Path, *, limit: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InvalidProgramError(path=path.name, found=f"more than {limit} bytes", expected="fewer")
    return content


def _package(folder: Path, target: Target) -> bytes:
    if target.size_bytes > MAX_PACKAGE_BYTES:
        raise InvalidProgramError(
            path=target.path, found=f"{target.size_bytes} bytes", expected=f"at most {MAX_PACKAGE_BYTES}"
        )
    path = folder / target.path
    if path.is_symlink() or not path.is_file():
        raise CorruptPackageError(path=target.path, found="no plain file", expected=f"sha256 {target.sha256}")
    content = _read(path, limit=target.size_bytes)
    if not target.matches(content):
        raise CorruptPackageError(path=target.path, found="other bytes", expected=f"sha256 {target.sha256}")
    return content
