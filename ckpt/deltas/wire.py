"""Deltas on disk: ``delta.pb`` ↔ :class:`ckpt.Delta`, with every rule that needs no base checked on reading."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ckpt.deltas.codecs import codec
from ckpt.deltas.codecs.integers import WIDTHS
from ckpt.deltas.delta import Action, Delta, Frame, Operation, Patch
from ckpt.disk.folder import Folder, reading
from ckpt.errors import FormatError, VersionError
from ckpt.format.digests import CHUNK_BYTES, SHA256_BYTES, sha256, text
from ckpt.format.manifest import FORMAT_VERSION, Placement
from ckpt.format.names import DELTA_NAME
from ckpt.format.rules import MAX_STORAGE_BYTES
from ckpt.format.wire import (
    DELTA_MAGIC,
    MAX_FILE_BYTES,
    body_of,
    manifest_message,
    manifest_value,
    open_envelope,
    seal_envelope,
)
from ckpt.proto import delta_pb2 as pb

MAX_FRAME_BYTES = 16 << 20  # decoding one takes a few times as much memory
MAX_GROWTH_BYTES = 4 << 10  # of an encoded frame over what it decodes to


def read_delta(path: Path | str) -> Delta:
    """The delta at a path, with every rule checked that needs no base; patches are not looked at.

    Raises:
        NotACheckpointError: there is no ``delta.pb``.
        FormatError: it breaks a rule.
    """
    return reading(path, delta_in, expected=DELTA_NAME)


def delta_in(folder: Folder) -> Delta:
    """As :func:`read_delta`, of an opened folder."""
    return delta_from_bytes(folder.read(DELTA_NAME, at_most=MAX_FILE_BYTES), str(folder.path / DELTA_NAME))


def delta_from_bytes(data: bytes, where: str) -> Delta:
    """As :func:`read_delta`, of the bytes of ``delta.pb``; ``where`` names them in messages."""
    delta = _value(open_envelope(data, pb.Delta(), DELTA_MAGIC, where), data)
    _check(delta)
    return delta


def to_bytes(delta: Delta) -> bytes:
    """The bytes of ``delta.pb``."""
    message = pb.Delta(
        format_version=FORMAT_VERSION,
        base_root=_raw(delta.base_root),
        target_root=_raw(delta.target_root),
        target_seal=_raw(delta.target_seal),
        sequence=delta.sequence,
        target=manifest_message(delta.target),
        storages=[_operation_message(operation) for operation in delta.storages],
        attachments=[_operation_message(operation) for operation in delta.attachments],
        patches=[pb.Patch(name=patch.name, size=patch.size_bytes) for patch in delta.patches],
    )
    return seal_envelope(message, DELTA_MAGIC)


_FRAME_FIELDS = tuple(field.name for field in fields(Frame))  # named alike in proto/delta.proto


def _raw(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))


def _operation_message(operation: Operation) -> pb.Operation:
    frames = map(frame_message, operation.frames)
    return pb.Operation(action=int(operation.action), base=operation.base, frames=frames)  # type: ignore[arg-type]


def frame_message(frame: Frame) -> pb.Frame:
    return pb.Frame(**{name: getattr(frame, name) for name in _FRAME_FIELDS})


def frame_value(message: pb.Frame) -> Frame:
    return Frame(**{name: getattr(message, name) for name in _FRAME_FIELDS})


def _value(message: pb.Delta, data: bytes) -> Delta:
    if message.format_version != FORMAT_VERSION:
        raise VersionError("delta.format_version", str(message.format_version), str(FORMAT_VERSION))
    for name in ("base_root", "target_root", "target_seal"):
        if len(getattr(message, name)) != SHA256_BYTES:
            raise FormatError(f"delta.{name}", f"{len(getattr(message, name))} bytes", f"{SHA256_BYTES}")
    return Delta(
        base_root=text(message.base_root),
        target_root=text(message.target_root),
        target_seal=text(message.target_seal),
        sequence=message.sequence,
        target=manifest_value(message.target, whole=False),
        storages=tuple(_operation(operation) for operation in message.storages),
        attachments=tuple(_operation(operation) for operation in message.attachments),
        patches=tuple(Patch(name=patch.name, size_bytes=patch.size) for patch in message.patches),
        digest=text(sha256(body_of(data))),
        size_bytes=len(data) + sum(patch.size for patch in message.patches),
    )


def _operation(message: pb.Operation) -> Operation:
    try:
        action = Action(message.action)
    except ValueError:
        raise FormatError("delta.action", str(message.action), "1 … 3") from None
    return Operation(action=action, base=message.base, frames=tuple(map(frame_value, message.frames)))


def _check(delta: Delta) -> None:
    target = delta.target
    if any(place != Placement(file=0, offset=0) for place in target.placements):
        raise FormatError("delta.target", "a place of a storage", "none: the target's files are written anew")
    if target.files or len(delta.storages) != len(target.storages):
        raise FormatError("delta.storages", f"{len(delta.storages)} operations", f"{len(target.storages)}, no files")
    if len(delta.attachments) != len(target.attachments):
        raise FormatError("delta.attachments", f"{len(delta.attachments)} operations", f"{len(target.attachments)}")
    for number, patch in enumerate(delta.patches):
        if patch.name != patch_name(number):
            raise FormatError("delta.patches", f"'{patch.name[:40]}'", f"'{patch_name(number)}'")
    for operation, chunks in zip(delta.storages, target.storages, strict=True):
        _check_operation(operation, chunks.size_bytes, delta.patches)
    for operation, item in zip(delta.attachments, target.attachments, strict=True):
        _check_operation(operation, item.chunks.size_bytes, delta.patches)
    _check_patches(delta)


def _check_patches(delta: Delta) -> None:
    """The frames fill each patch exactly: nothing is encoded twice, nothing is hidden between."""
    reached = [0] * len(delta.patches)
    for frame in sorted(delta.frames(), key=lambda frame: (frame.patch, frame.patch_offset)):
        _expect(frame.patch_offset == reached[frame.patch], frame, "frames end to end in their patch")
        reached[frame.patch] += frame.encoded_size
    for patch, end in zip(delta.patches, reached, strict=True):
        if patch.size_bytes != end or end == 0:
            raise FormatError("delta.patches", f"'{patch.name}' of {patch.size_bytes} bytes", f"{end}, above 0")


def patch_name(number: int) -> str:
    return f"patch-{number + 1:05d}.bin"


def _check_operation(operation: Operation, size: int, patches: Sequence[Patch]) -> None:
    if size > MAX_STORAGE_BYTES or (operation.action is Action.COPY and operation.frames):
        raise FormatError("delta.operation", f"{size} bytes, {len(operation.frames)} frames", "a copy without frames")
    if operation.action is Action.NEW and operation.base:
        raise FormatError("delta.operation", f"base {operation.base} of new content", "none")
    reached = 0
    for frame in operation.frames:
        _check_frame(frame, size, patches)
        _expect(frame.offset >= reached, frame, "frames that ascend without overlap")
        if operation.action is Action.NEW:
            _expect(frame.offset == reached and frame.base_size == 0, frame, "new content without hole or base")
        reached = frame.offset + frame.size
    if operation.action is Action.NEW and reached != size:
        raise FormatError("delta.operation", f"frames for {reached} bytes", f"{size}")


def _check_frame(frame: Frame, size: int, patches: Sequence[Patch]) -> None:
    end = frame.offset + frame.size
    _expect(frame.offset % CHUNK_BYTES == 0, frame, "an offset on a chunk's boundary")
    _expect(0 < frame.size <= MAX_FRAME_BYTES and end <= size, frame, "bytes inside the target")
    _expect(end == size or end % CHUNK_BYTES == 0, frame, "whole chunks")
    few = frame.base_size <= MAX_FRAME_BYTES or frame.codec == "moved"  # which reads no more of it than ``size``
    _expect(few, frame, f"a base of at most {MAX_FRAME_BYTES} bytes")
    _expect(frame.base_size > 0 or frame.base_offset == 0, frame, "no place in a base that is not read")
    _expect(frame.width in WIDTHS and len(frame.sha256) == SHA256_BYTES, frame, "a width of 1, 2, 4, 8 and a SHA-256")
    _expect(0 < frame.encoded_size <= frame.size + MAX_GROWTH_BYTES, frame, "encoded bytes, hardly more than decoded")
    _expect(frame.patch < len(patches), frame, "a patch of the table")
    _expect(frame.reversible == codec(frame.codec).REVERSIBLE, frame, "what its codec says of reversing")
    _expect(not frame.reversible or frame.base_size == frame.size, frame, "as much of the base where it is reversible")


def _expect(condition: bool, frame: Frame, expected: str) -> None:
    if not condition:
        raise FormatError(
            f"delta.frame at byte {frame.offset}", f"{frame.size} bytes by '{frame.codec[:40]}'", expected
        )
