"""Which tensors stand for a storage in the header of a safetensors file."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from ckpt.format.dtypes import BY_NAME
from ckpt.format.records import TensorRecord, is_permuted


def named(users: Sequence[TensorRecord], size: int) -> tuple[TensorRecord, ...]:
    """The tensors that stand for a storage of ``size`` bytes, by offset; none when they cannot tile it.

    In state order each contiguous tensor of a dtype that safetensors names is taken unless it overlaps one taken
    before; where these leave a gap, one tensor that covers the whole storage is taken instead. A piece is never taken:
    under the tensor's name, other readers would meet a part of it.
    """
    able = [tensor for tensor in users if _is_able(tensor, len(users))]
    if len(able) == 1:
        return tuple(able) if able[0].size_bytes == size else ()
    taken = _disjoint(able)
    if taken and sum(tensor.size_bytes for tensor in taken) == size:
        return tuple(taken)
    return tuple(tensor for tensor in able if tensor.size_bytes == size)[:1]


def _disjoint(tensors: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Those that overlap none taken before them, by offset; none is empty.

    A million views are a million questions: how far do those taken reach that begin before this one ends? A binary
    indexed tree over the sorted offsets holds the furthest ends.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    if all(one.offset + one.size_bytes <= other.offset for one, other in pairwise(ordered)):
        return ordered
    offsets = sorted({tensor.offset for tensor in tensors})
    furthest = [0] * (len(offsets) + 1)
    taken = []
    for tensor in tensors:
        end = tensor.offset + tensor.size_bytes
        reached, place = 0, bisect_left(offsets, end)
        while place:
            reached = max(reached, furthest[place])
            place &= place - 1
        if reached <= tensor.offset:
            taken.append(tensor)
            place = bisect_right(offsets, tensor.offset)
            while place < len(furthest):
                furthest[place] = max(furthest[place], end)
                place += place & -place
    return sorted(taken, key=lambda tensor: tensor.offset)


def _is_able(tensor: TensorRecord, users: int) -> bool:
    lies_in_order = tensor.piece_at is None and (tensor.is_contiguous or is_permuted(tensor, users))
    return lies_in_order and BY_NAME[tensor.dtype].safetensors is not None and tensor.name != "__metadata__"
