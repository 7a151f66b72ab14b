"""Notes beside a patch that is being written: its frames so far, so that what a killed writer encoded is not lost."""

import os
import struct
from collections import deque
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError

from ckpt.deltas.delta import Frame
from ckpt.deltas.wire import frame_message, frame_value
from ckpt.format.digests import sha256
from ckpt.proto import delta_pb2 as pb

_SIZE = struct.Struct("<H")


class Notes:
    """Frames of a patch, noted when they are in it.

    Args:
        path: The notes; they may be there already.
        patch: The patch, at its start. It is left at the end of the frames that are there as noted; what follows goes.
    """

    def __init__(self, path: Path, patch: BinaryIO) -> None:
        self._path, self._patch = path, patch
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115 - closed at the end of the block
        self._earlier: deque[tuple[int, Frame]] = deque()  # each with the end of the notes before it

    def __enter__(self) -> "Notes":
        self._find()
        return self

    def __exit__(self, *_: object) -> None:
        """The patch is whole, or its folder goes."""
        self._file.close()
        self._path.unlink()

    def _find(self) -> None:
        reached, end, size = 0, 0, os.fstat(self._patch.fileno()).st_size
        while (frame := self._read()) is not None:
            if frame.patch_offset != reached or reached + frame.encoded_size > size:
                break
            if sha256(self._patch.read(frame.encoded_size)) != frame.sha256:
                break
            self._earlier.append((end, frame))
            reached, end = reached + frame.encoded_size, self._file.tell()
        self._cut(end, reached)

    def _read(self) -> Frame | None:
        head = self._file.read(_SIZE.size)
        if len(head) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack(head)
        try:
            return frame_value(pb.Frame.FromString(self._file.read(size)))
        except DecodeError:
            return None

    def _cut(self, notes_end: int, patch_end: int) -> None:
        self._file.seek(notes_end)
        self._file.truncate()
        self._patch.seek(patch_end)
        self._patch.truncate()

    def take(self, offset: int, size: int) -> Frame | None:
        """The next of the frames that were there, where it is the one that writes these bytes; otherwise all go."""
        if not self._earlier:
            return None
        end, frame = self._earlier.popleft()
        if (frame.offset, frame.size) == (offset, size):
            return frame
        self._earlier.clear()
        self._cut(end, frame.patch_offset)
        return None

    def add(self, frame: Frame) -> None:
        """Note a frame that was written to the patch."""
        self._patch.flush()
        message = frame_message(frame).SerializeToString(deterministic=True)
        self._file.write(_SIZE.pack(len(message)) + message)
