"""Which tensors stand for a storage in the header of a safetensors file."""

from bisect import bisect_left
from collections.abc import Sequence

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
    taken: list[TensorRecord] = []
    starts: list[int] = []
    for tensor in able:
        place = bisect_left(starts, tensor.offset)
        after_one = place == 0 or starts[place - 1] + taken[place - 1].size_bytes <= tensor.offset
        if after_one and (place == len(starts) or tensor.offset + tensor.size_bytes <= starts[place]):
            starts.insert(place, tensor.offset)
            taken.insert(place, tensor)
    if taken and sum(tensor.size_bytes for tensor in taken) == size:
        return tuple(taken)
    return tuple(tensor for tensor in able if tensor.size_bytes == size)[:1]


def _is_able(tensor: TensorRecord, users: int) -> bool:
    lies_in_order = tensor.piece_at is None and (tensor.is_contiguous or is_permuted(tensor, users))
    return lies_in_order and BY_NAME[tensor.dtype].safetensors is not None and tensor.name != "__metadata__"
