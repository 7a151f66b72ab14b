"""What this process holds of a tensor: all of it, or boxes of one that is spread over several processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor

from ckpt.errors import UnsupportedStateError
from ckpt.format.boxes import Box, whole


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, and its elements in this process."""

    box: Box
    tensor: Tensor


def parts_of(name: str, tensor: Tensor) -> Sequence[Part]:
    """The boxes of a tensor that this process holds; none where others hold all of it.

    Raises:
        UnsupportedStateError: a DTensor whose elements are sums that are still to be made, or whose shards are not what
            its placements say.
    """
    if isinstance(tensor, DTensor):
        parts = _of_dtensor(name, tensor)
    elif isinstance(tensor, ShardedTensor):
        parts = [_of_shard(shard.metadata.shard_offsets, shard.tensor) for shard in tensor.local_shards()]
    else:
        parts = [Part(whole(tensor.shape), tensor.detach())]
    held = [part for part in parts if part.box.sizes == tuple(tensor.shape) or 0 not in part.box.sizes]
    for part in held:
        if tuple(part.tensor.shape) != part.box.sizes:
            raise UnsupportedStateError(
                name,
                f"a shard of shape {tuple(part.tensor.shape)} where its placement has {part.box.sizes}",
                "build it with distribute_tensor, or state its true shape and placements",
            )
    return held


def _of_dtensor(name: str, tensor: DTensor) -> list[Part]:
    if any(placement.is_partial() for placement in tensor.placements):
        raise UnsupportedStateError(
            name, f"a DTensor of placements {tensor.placements}", "redistribute it to Replicate or Shard first"
        )
    if tensor.device_mesh.get_coordinate() is None:
        return []
    with torch.no_grad():
        local = tensor.to_local().detach()
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return [Part(Box(tuple(chunk.offsets), tuple(chunk.sizes)), local)]


def _of_shard(offsets: Sequence[int], local: Tensor) -> Part:
    return Part(Box(tuple(offsets), tuple(local.shape)), local.detach())
