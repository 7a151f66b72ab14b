"""Programs that were compiled before, recalled before anything is traced.

The key is everything that decides what compiling makes: the model's fingerprint, the outline of its inputs, dynamic
dimensions, the backend with its machines, flags and versions, and this package's own source. Weights' values are no
part of it, as neither capture nor a pass reads them. So a program is handed out after it was compared with this very
model, with its weights, on the example. Why that is enough: ``docs/decisions/0019-programs-before-tracing.md``.
"""

import hashlib
import time
from collections.abc import Sequence
from functools import cache as once
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from compiler.backends.target import Target
from compiler.cache import PROGRAM, Cache
from compiler.errors import CorruptPackageError, InvalidProgramError, VerificationError
from compiler.fingerprint import fingerprint
from compiler.program import Program, program_of
from compiler.storage import pack, unpack
from compiler.surroundings import UnfathomableError
from compiler.verification import confirm

_IMPORTED_S: Final = time.time()


def key_of(model: nn.Module, example_inputs: Sequence[Tensor], *, asked: Sequence[Any], cache: Cache) -> str | None:
    """The key of a call of ``compile``; None, with a note in the cache, where not all that decides is understood.

    Args:
        model, example_inputs: As for ``compile``.
        asked: Whatever else decides: dynamic dimensions, backend, requirements, flags, versions.
        cache: Takes the note.
    """
    try:
        known = fingerprint(model, *example_inputs, asked)
        return hashlib.sha256(f"{known} {_own_source()}".encode()).hexdigest()
    except UnfathomableError as error:
        cache.notes.append(f"not recalled and not kept, as its influence on the graph is not known: {error}")
        return None


def find(key: str, *, model: nn.Module, example_inputs: Sequence[Tensor], cache: Cache) -> Program | None:
    """The program of this key, if the cache has it whole and it answers as the model does; notes say what it had."""
    content = cache.find(key, kind=PROGRAM)
    if content is None:
        cache.notes.append("compiled: no program of this key was kept")
        return None

    def package_of(target: Target) -> bytes:
        package = cache.find_package(target.sha256)
        if package is None or not target.matches(package):
            raise CorruptPackageError(path=target.path, found="none in the cache", expected=f"sha256 {target.sha256}")
        return package

    try:
        program = program_of(unpack(content, package_of=package_of, validated=True))
        runner = program.bind(model.state_dict())
        confirm(program.definition, model=model, example_inputs=example_inputs, runner=runner)
    except (InvalidProgramError, VerificationError) as error:
        cache.drop(key, kind=PROGRAM, why=f"compiled: what was kept is of no use: {error}")
        return None
    cache.notes.append("recalled, and compared with these weights")
    return program


def store(key: str, program: Program, *, cache: Cache) -> None:
    """Keep a program that was validated and verified; its packages were kept when they were built."""
    cache.store(key, pack(program.contents), kind=PROGRAM)


@once
def _own_source() -> str:
    """A digest of this package's source, which is what runs as long as no file is younger than this process.

    Raises:
        UnfathomableError: One is.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        if file.stat().st_mtime > _IMPORTED_S:
            raise UnfathomableError(str(file), "was changed after this process had imported it")
        digest.update(file.read_bytes())
    return digest.hexdigest()
