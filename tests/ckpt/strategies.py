"""Hypothesis strategies for states: nested values, tensors of every dtype with any bits, and views."""

import torch
from hypothesis import strategies as st

from ckpt.dtypes import BY_NAME, torch_dtype

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
