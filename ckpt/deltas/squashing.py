"""Make one delta of many, without a checkpoint being written in between.

With the base it is the delta of both ends, as :func:`ckpt.diff` makes it: the last target is made in memory, frame by
frame, and proved. Without it frames are composed as far as they tell by themselves. Deltas on the way lie beside the
outcome until it is there; what a killed ``squash`` of the same made of them is gone on with.
"""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from ckpt.deltas.codecs import CODECS
from ckpt.deltas.composing import compose
from ckpt.deltas.delta import Delta, Operation
from ckpt.deltas.made import Made
from ckpt.deltas.patches import Patches, patches_in
from ckpt.deltas.sides import Side
from ckpt.deltas.writer import check_codecs, encoders, put_delta, write_between
from ckpt.disk.commit import refuse_destination, remove_entry, scratch
from ckpt.disk.folder import reading
from ckpt.disk.hashing import Progress
from ckpt.errors import CheckpointError, WrongBaseError
from ckpt.format.digests import sha256
from ckpt.format.names import DELTA_NAME
from ckpt.reading.payload import Payload, open_payload
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer
from ckpt.signatures.trust import Trusted, as_trust

AT_ONCE = 4  # deltas: each holds up to 32 MiB of decoded frames, and up to 16 MiB of what is being put together


def squash(
    deltas: Sequence[Path | str],
    out: Path | str,
    *,
    base: Path | str | None = None,
    trust: Trusted | None = None,
    sign: Signer | PrivateKey | None = None,
    codecs: Collection[str] = tuple(CODECS),
    progress: Progress | None = None,
) -> Delta:
    """Write the one delta that does what ``deltas`` do one after the other.

    Its ``sequence`` is that of the last one, whose target's signatures travel with it.

    Args:
        deltas: Delta folders, each made for the target of the one before it.
        out: The delta folder to be.
        base: The checkpoint that the first one was made for. With it the outcome is what :func:`ckpt.diff` makes of
            both ends, proved by the last target's digests. Without it, what the deltas do not tell of the target is
            proved when it is applied.
        trust: Whose signature each of them must have, as for :func:`ckpt.apply`.
        sign, progress: As for :func:`ckpt.diff`.
        codecs: Those that may be used for what is encoded anew, beside ``"raw"``.

    Returns:
        The delta.

    Raises:
        ValueError: no deltas, or a codec that there is not.
        WrongBaseError: a delta was made for another checkpoint than the one before it makes; both roots are named.
        BaseNeededError: no base was given, and two frames met that cannot be told without; the second one is named.
        SignatureError: nobody who is trusted has signed one of them.
        CorruptFrameError, CorruptChunkError: a frame, or a chunk of the base, is not what was written.
        FormatError: a delta breaks a rule.
        DestinationError: ``out`` exists.
    """
    if isinstance(deltas, str | Path) or not deltas:
        raise ValueError(f"deltas is {deltas!r}; expected a list of one delta folder or more, in their order")
    check_codecs(codecs)
    read = partial(patches_in, trust=as_trust(trust))
    chain = [reading(delta, read, expected=DELTA_NAME) for delta in deltas]
    for one, then in pairwise(chain):
        if then.delta.base_root != one.delta.target_root:
            raise WrongBaseError(
                delta=then.folder,
                base=f"what '{one.folder}' makes",
                found=one.delta.target_root,
                expected=then.delta.base_root,
            )
    refuse_destination(out, overwrite=False, owns=lambda _: "another delta")
    before = None if base is None else open_payload(base, attachments=True)
    for patches in chain:
        patches.prove()  # also the frames that others overwrite, which are not decoded
    steps = -(-(len(chain) - 1) // (AT_ONCE - 1)) or 1
    with scratch(out, work=_work(chain, before, codecs)) as folder:
        for step in range(1, steps):
            first, told = chain[:AT_ONCE], _part(progress, step, steps)
            write = partial(_squash, first, between=folder / f"{step}-ends", base=before, codecs=codecs, progress=told)
            chain = [_kept(folder / f"{step}", write), *chain[AT_ONCE:]]
        told = _part(progress, steps, steps)
        return _squash(chain, out, between=folder / "ends", base=before, codecs=codecs, progress=told, sign=sign)


def _work(chain: Sequence[Patches], base: Payload | None, codecs: Collection[str]) -> str:
    parts = [*(patches.delta.digest for patches in chain), "" if base is None else base.manifest.seal]
    return f"squash {sha256(' '.join(parts).encode()).hex()} {encoders(codecs)}"


def _kept(place: Path, write: Callable[[Path], Delta]) -> Patches:
    """A delta on the way, under a name that tells its digest; one that a killed ``squash`` left is taken if proved."""
    read = partial(reading, read=partial(patches_in, trust=None), expected=DELTA_NAME)
    for left in place.parent.glob(f"{place.name}={'[0-9a-f]' * 64}"):
        with suppress(CheckpointError):
            patches = read(left)
            patches.prove()
            if left == _named(place, patches.delta):
                return patches
        remove_entry(left)
    if os.path.lexists(place):
        remove_entry(place)
    return read(place.rename(_named(place, write(place))))


def _named(place: Path, delta: Delta) -> Path:
    return place.with_name(f"{place.name}={delta.digest.removeprefix('sha256:')}")


def _squash(
    chain: Sequence[Patches],
    out: Path | str,
    *,
    between: Path,
    base: Payload | None,
    codecs: Collection[str],
    progress: Progress | None,
    sign: Signer | PrivateKey | None = None,
) -> Delta:
    last = chain[-1]
    if base is None:
        return put_delta(
            out,
            lambda file: compose(chain, file, codecs, progress),
            sign=sign,
            target_signatures=last.signatures.target,
        )
    target: Side = base
    for patches in chain:
        target = Made(target, patches)
    write = partial(write_between, base, target, sequence=last.delta.sequence, codecs=codecs, progress=progress)
    ends = _kept(between, write)
    return put_delta(
        out,
        lambda file: compose(chain, file, codecs, None, ends=ends),
        sign=sign,
        target_signatures=last.signatures.target,
        accept=lambda folder: _prove_composed(folder, base, ends.delta),
    )


def _prove_composed(folder: Path, base: Side, ends: Delta) -> None:
    """Decode what was not taken from the delta between both ends, whose encoder had proved bytes at hand."""
    patches = reading(folder, partial(patches_in, trust=None), expected=DELTA_NAME)
    made = Made(base, patches)
    for index, (one, other) in enumerate(zip(patches.delta.storages, ends.storages, strict=True)):
        if not _same_frames(one, other):
            made.prove_storage(index)
    for index, (one, other) in enumerate(zip(patches.delta.attachments, ends.attachments, strict=True)):
        if not _same_frames(one, other):
            made.prove_attachment(index)


def _same_frames(one: Operation, other: Operation) -> bool:
    if (one.action, one.base) != (other.action, other.base):
        return False
    return [frame.sha256 for frame in one.frames] == [frame.sha256 for frame in other.frames]


def _part(progress: Progress | None, step: int, steps: int) -> Progress | None:
    """The progress of one of several steps that count alike."""
    if progress is None:
        return None
    return lambda done, total: progress((step - 1) * total + done, steps * total)
