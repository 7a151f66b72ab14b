"""A checkpoint's tensors in DCP's own terms, for those who look at its ``Metadata``."""

from collections.abc import Sequence

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)

from ckpt.format.dtypes import torch_dtype
from ckpt.format.records import PieceRecord, TensorRecord, views_of


def tensors_of(tensors: Sequence[TensorRecord], pieces: Sequence[PieceRecord]) -> dict[str, STORAGE_TYPES]:
    """Name → dtype, shape, and the boxes that it lies in."""
    boxes: dict[str, list[ChunkStorageMetadata]] = {}
    for view in views_of(tensors, pieces):
        offsets = view.piece_at or (0,) * len(view.shape)
        box = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(view.shape))
        boxes.setdefault(view.name, []).append(box)
    return {
        tensor.name: TensorStorageMetadata(
            properties=TensorProperties(dtype=torch_dtype(tensor.dtype)),
            size=torch.Size(tensor.shape),
            chunks=boxes[tensor.name],
        )
        for tensor in tensors
    }
