"""A checkpoint folder, opened as something to serve: every byte verified, root and seal compared, the program read.

Promises: a Release that leaves ``open_release`` has exactly the root and the seal that were asked for. The root covers
weights and state, the seal the program too: who can write to the folder can write a manifest for another program, but
not one of the same seal. Every byte of its weights and of its program was checked against the manifest by SHA-256, the
weights in the very copy that is handed on. What does not verify is refused by a ReleaseRefusedError with the
checkpoint's or the compiler's own error as its cause. Fetching folders is the business of ``source``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ckpt
import compiler
from serving.errors import ReleaseRefusedError
from serving.weights import Release

PROGRAM_FOLDER = "program"  # attachments under this path are what ``Program.save`` wrote


@contextmanager
def open_release(folder: Path, *, root: str, seal: str) -> Iterator[Release]:
    """Open ``folder``, which must hold a checkpoint of ``root`` and ``seal`` with a program attached.

    Raises:
        ReleaseRefusedError: It does not verify, has another root or seal, or brings no program that can be read.
    """
    try:
        with ckpt.open(folder, verify="sha256", root=root, mmap=False) as checkpoint:
            _require_seal(checkpoint, seal)
            yield _read(checkpoint, folder=folder)
    except (ckpt.CheckpointError, compiler.CompilerError, OSError) as error:
        raise ReleaseRefusedError(
            f"checkpoint folder '{folder}'",
            found=str(error),
            expected=f"a verified release of {root}",
            next_step="Fetch it again; what served before still serves.",
        ) from error


def _require_seal(checkpoint: ckpt.Checkpoint, seal: str) -> None:
    if checkpoint.seal != seal:
        raise ReleaseRefusedError(
            f"checkpoint folder '{checkpoint.path}'",
            found=f"seal {checkpoint.seal}",
            expected=f"seal {seal}",
            next_step="Fetch it again: its program, another attachment or its metadata were exchanged. What served "
            "before still serves.",
        )


def _read(checkpoint: ckpt.Checkpoint, *, folder: Path) -> Release:
    files = [item.path for item in checkpoint.manifest.attachments if item.path.startswith(f"{PROGRAM_FOLDER}/")]
    if not files:
        raise ReleaseRefusedError(
            f"checkpoint folder '{folder}'",
            found=f"no attachment under '{PROGRAM_FOLDER}/'",
            expected="a compiled program",
            next_step="Release the model with its program attached.",
        )
    for file in files:
        checkpoint.attachment(file)
    program = compiler.load(folder / PROGRAM_FOLDER)
    tensors = {spec.name: checkpoint[spec.name] for spec in program.requires if spec.name in checkpoint}
    return Release(folder=folder, root=checkpoint.root, program=program, tensors=tensors)
