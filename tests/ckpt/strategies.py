"""Hypothesis strategies for states: nested values, tensors of every dtype with any bits, views, and tilings."""

import torch
from hypothesis import strategies as st

from ckpt.format.boxes import Box, whole
from ckpt.format.dtypes import BY_NAME, torch_dtype

DTYPES = [name for name in BY_NAME if hasattr(torch, name)]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**200), max_value=2**200),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.just(torch.device("cpu")),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any dtype and any bits: contiguous, transposed, strided, expanded or empty."""
    dtype = torch_dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = dtype.itemsize
    for length in shape:
        size *= length
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if dtype is torch.bool:
        flat = flat & 1
    return draw(views(flat.view(dtype).reshape(shape)))


@st.composite
def views(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    match draw(st.sampled_from(["plain", "transposed", "strided", "expanded"])):
        case "transposed" if tensor.dim() >= 2:
            return tensor.transpose(0, -1)
        case "strided" if tensor.dim() >= 1:
            return tensor[::2]
        case "expanded" if tensor.dim() >= 1:
            return tensor[:1].expand(3, *tensor.shape[1:]) if tensor.shape[0] else tensor
        case _:
            return tensor


keys = st.one_of(st.text(max_size=6), st.integers(-5, 5), st.booleans(), st.none(), st.binary(max_size=3))

states = st.recursive(
    st.one_of(scalars, tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=8,
)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape, and boxes that tile it: cut again and again along any axis."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    boxes = [whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.sizes[axis] - 1))
        boxes += [box] if at == 0 else _halves(box, axis, at)
    return shape, sorted(boxes, key=lambda box: box.offsets)


def _halves(box: Box, axis: int, at: int) -> list[Box]:
    def changed(numbers: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*numbers[:axis], value, *numbers[axis + 1 :])

    first = Box(box.offsets, changed(box.sizes, at))
    return [first, Box(changed(box.offsets, box.offsets[axis] + at), changed(box.sizes, box.sizes[axis] - at))]
