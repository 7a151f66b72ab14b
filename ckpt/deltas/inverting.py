"""Make the way back: of a delta from base to target, the delta from target to base.

A delta states what its target has and its base has not. What is needed for the way back is the other half, and lies in
the base alone: its state, its digests, what was dropped, replaced or changed in dtype. So the base is read; the target
is not: the delta makes it, frame by frame, while the way back is encoded.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path

from ckpt.deltas.codecs import CODECS
from ckpt.deltas.delta import Delta
from ckpt.deltas.made import Made, is_additive
from ckpt.deltas.patches import patches_in
from ckpt.deltas.writer import check_codecs, write_between
from ckpt.disk.folder import reading
from ckpt.disk.hashing import Progress
from ckpt.errors import BaseNeededError
from ckpt.format.names import DELTA_NAME
from ckpt.reading.payload import open_payload
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer
from ckpt.signatures.trust import Trusted, as_trust


def invert(
    delta: Path | str,
    out: Path | str,
    *,
    base: Path | str | None = None,
    trust: Trusted | None = None,
    sign: Signer | PrivateKey | None = None,
    codecs: Collection[str] = tuple(CODECS),
    progress: Progress | None = None,
) -> Delta:
    """Write the delta that turns the target of ``delta`` back into its base, with the base's signatures.

    It is the delta that :func:`ckpt.diff` makes from target to base, byte for byte; the target need not be there.

    Args:
        delta: A delta folder.
        out: The delta folder to be.
        base: The checkpoint that ``delta`` was made for. No delta can be inverted without it.
        trust: Whose signature ``delta`` must have, as for :func:`ckpt.apply`.
        sign, codecs, progress: As for :func:`ckpt.diff`.

    Returns:
        The inverse; its ``target_root`` is the delta's ``base_root``.

    Raises:
        ValueError: a codec that there is not.
        BaseNeededError: no base was given; it says what of it the delta lacks.
        SignatureError: nobody who is trusted has signed the delta.
        WrongBaseError: made for another base; found and expected roots are named.
        CorruptFrameError, CorruptChunkError: a frame, or a chunk of the base, is not what was written.
        FormatError: the delta breaks a rule.
        DestinationError: ``out`` exists.
    """
    check_codecs(codecs)
    patches = reading(delta, partial(patches_in, trust=as_trust(trust)), expected=DELTA_NAME)
    if base is None:
        raise BaseNeededError(delta=patches.folder, found=_lacking(patches.delta), expected=patches.delta.base_root)
    before = open_payload(base, attachments=True, signatures=True)
    after = Made(before, patches)
    patches.prove()  # also the frames of what the base does not have, which are not decoded
    return write_between(after, before, out, sign=sign, codecs=codecs, progress=progress)


def _lacking(delta: Delta) -> str:
    """What of the base a delta does not hold."""
    chunks = sum(len(operation.covered()) for operation in (*delta.storages, *delta.attachments))
    lacking = f"it holds neither the state, names and metadata of its base nor the digests of {chunks} changed chunks"
    if frames := [frame for frame in delta.frames() if not is_additive(frame)]:
        codecs = ", ".join(sorted({frame.codec for frame in frames}))
        lacking += f", and {len(frames)} of its {len(delta.frames())} frames ({codecs}) are undone with its bytes only"
    return lacking
