"""A delta folder, opened: its patches mapped, its frames proved and decoded when they are asked for."""

from dataclasses import dataclass
from pathlib import Path

from ckpt.deltas.codecs import codec, moved
from ckpt.deltas.delta import Delta, Frame, Patch
from ckpt.deltas.sides import Bytes, Part
from ckpt.deltas.wire import delta_in
from ckpt.disk.folder import Folder, forget
from ckpt.errors import CorruptFileError, CorruptFrameError
from ckpt.format.digests import sha256, text
from ckpt.signatures.statements import Signatures, StatementKind, signatures_in
from ckpt.signatures.trust import Trust, accepted


@dataclass(frozen=True, slots=True)
class Patches:
    """A delta folder with its patches mapped; frames are decoded one at a time."""

    folder: Path
    delta: Delta
    signatures: Signatures
    files: tuple[memoryview, ...]

    def decode(self, frame: Frame, base: Bytes) -> bytes | bytearray:
        """The bytes of a frame; its SHA-256 is checked before its decoder runs.

        Pages of a base that is mapped are let go of.

        Raises:
            CorruptFrameError: other bytes than were written, or they decode to something else.
        """
        encoded = self.encoded(frame)
        if frame.base_offset + frame.base_size > len(base):
            raise self.bad(frame, f"a base of {len(base)} bytes", f"{frame.base_offset + frame.base_size}")
        try:
            decoded = _decoded(frame, Part(base, frame.base_offset, frame.base_size), memoryview(encoded))
        except ValueError as error:
            raise self.bad(frame, str(error), f"{frame.size} bytes") from error
        if len(decoded) != frame.size:
            raise self.bad(frame, f"{len(decoded)} bytes", f"{frame.size} bytes")
        return decoded

    def encoded(self, frame: Frame) -> bytes:
        """The encoded bytes of a frame, proved.

        Raises:
            CorruptFrameError: other bytes than were written.
        """
        view = self.files[frame.patch][frame.patch_offset : frame.patch_offset + frame.encoded_size]
        encoded = bytes(view)  # a copy, so that the decoder gets the very bytes that were hashed
        forget(view)
        found = sha256(encoded)
        if found != frame.sha256:
            raise self.bad(frame, text(found), text(frame.sha256))
        return encoded

    def prove(self) -> None:
        """Raise on the first frame whose encoded bytes are other than were written."""
        for frame in self.delta.frames():
            self.encoded(frame)

    def name_of(self, frame: Frame) -> str:
        """A frame in words, for messages."""
        return f"the frame at byte {frame.patch_offset} of {self.delta.patches[frame.patch].name}"

    def bad(self, frame: Frame, found: str, expected: str) -> CorruptFrameError:
        return CorruptFrameError(delta=self.folder, frame=self.name_of(frame), found=found, expected=expected)


def _decoded(frame: Frame, base: Part, encoded: memoryview) -> bytes | bytearray:
    if frame.codec == "moved":  # of a base that may be long it takes no more than it makes, and lets go of it
        return moved.decode(base, encoded, width=frame.width, size=frame.size)
    view = base[:]
    decoded = codec(frame.codec).decode(view, encoded, width=frame.width, size=frame.size)
    forget(view)
    return decoded


def patches_in(folder: Folder, trust: Trust | None) -> Patches:
    """Open the delta in a folder; under ``trust`` nothing of a patch is looked at before a signature counted.

    Raises:
        SignatureError: nobody who is trusted has signed the delta.
        FormatError: it breaks a rule that needs no base.
        CorruptFrameError: a patch is missing, or of another size.
    """
    delta, signatures = delta_in(folder), signatures_in(folder, StatementKind.DELTA)
    if trust is not None:
        accepted(signatures.own, trust, kind=StatementKind.DELTA, subject=delta.digest, path=folder.path)
    return Patches(folder.path, delta, signatures, tuple(patch_of(folder, patch) for patch in delta.patches))


def patch_of(folder: Folder, patch: Patch) -> memoryview:
    """The bytes of a patch.

    Raises:
        CorruptFrameError: it is missing, or of another size.
    """
    try:
        return folder.view(patch.name, size_bytes=patch.size_bytes)
    except CorruptFileError as error:
        raise CorruptFrameError(
            delta=folder.path,
            frame=f"{error.what} of {patch.name}",
            found=str(error.found),
            expected=str(error.expected),
        ) from None
