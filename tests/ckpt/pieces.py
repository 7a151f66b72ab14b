"""Checkpoints with tensors in pieces, written by one process: what several writers would have made."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ckpt.format.boxes import Box, whole
from ckpt.format.dtypes import bits
from ckpt.format.manifest import Manifest
from ckpt.format.records import PieceRecord, TensorRecord, contiguous_strides
from ckpt.format.state import flatten
from ckpt.saving.memory import collect
from ckpt.saving.writer import write


def rows(shape: Sequence[int], *ends: int) -> list[Box]:
    """Cuts along the first axis, after these rows."""
    return along(shape, 0, *ends)


def along(shape: Sequence[int], axis: int, *ends: int) -> list[Box]:
    """Cuts along an axis, after these elements."""
    starts, stops = (0, *ends), (*ends, shape[axis])
    boxes = []
    for start, stop in zip(starts, stops, strict=True):
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[axis], sizes[axis] = start, stop - start
        boxes.append(Box(tuple(offsets), tuple(sizes)))
    return boxes


def save_in_pieces(
    state: object,
    path: Path,
    cuts: Mapping[str, Sequence[Box]],
    *,
    ties: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Manifest:
    """Write a state with some of its tensors cut into boxes, in the order of their offsets.

    Args:
        state: Of contiguous tensors that share no memory, but for those in ``ties``.
        path: The folder to be.
        cuts: Tensor name → its boxes.
        ties: Name of a cut tensor → the one whose pieces it shares.
        metadata: As for ``ckpt.save``.
    """
    nodes, tensors = flatten(state)
    own = {name: (ties or {}).get(name, name) for name in tensors}
    numbers: dict[tuple[str, Box], int] = {}
    sources = []
    for name in sorted(tensors, key=str.encode):
        for box in cuts.get(own[name], [whole(tensors[name].shape)]):
            if (own[name], box) not in numbers:
                numbers[own[name], box] = len(numbers)
                cut = tensors[own[name]]
                part = bits(cut)[box.within(whole(cut.shape))].contiguous().view(cut.dtype)
                sources.append(collect({"part": part})[1][0])
    records, pieces = [], []
    for index, (name, tensor) in enumerate(tensors.items()):
        boxes = cuts.get(own[name], [whole(tensor.shape)])
        records.append(_record(name, tensor, numbers[own[name], boxes[0]]))
        if len(boxes) > 1:
            pieces += [_piece(index, box, numbers[own[name], box]) for box in boxes]
    return write(
        path, records=records, pieces=pieces, sources=sources, state=nodes, metadata=metadata or {}, attachments={}
    )


def _record(name: str, tensor: torch.Tensor, storage: int) -> TensorRecord:
    return TensorRecord(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=contiguous_strides(tensor.shape),
        offset=0,
        storage=storage,
    )


def _piece(tensor: int, box: Box, storage: int) -> PieceRecord:
    return PieceRecord(tensor=tensor, offsets=box.offsets, sizes=box.sizes, storage=storage)
