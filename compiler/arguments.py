"""What operators take: checked before torch sees it, where torch itself does not check, or not on shapes alone.

Torch converts by itself, and not everywhere with care: an integer where an element type belongs is taken for one, and
ends the process (torch 2.13). Run on shapes alone, convolutions and products take what they refuse on tensors: groups
that divide nothing, lists of another length, two element types. Each rule here was found by mutating programs.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

import torch
from torch import Tensor

from compiler import dtypes
from compiler.definition import Argument, Atom, DTypeName, MemoryFormatName, Ref, atoms

_ATOMS: Final[dict[str, tuple[type, ...]]] = {
    "Tensor": (Ref, float, int, bool),  # torch makes a tensor of a number
    "int": (int, Ref),
    "float": (float, int, Ref),
    "number": (float, int, bool, Ref),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (DTypeName,),
    "MemoryFormat": (MemoryFormatName,),
}
_BITWISE: Final = ("bitwise_and", "bitwise_or", "bitwise_not", "__and__", "__or__")
_DEFAULT: Final = {float: torch.float32}
_INDICES: Final = (torch.int32, torch.int64)
_MOST: Final = 2**31 - 1  # of a stride, a padding, a dilation: what libraries below torch count in
# Operators that multiply and add tensors, which must all be of one element type.
_PRODUCTS: Final = ("conv", "linear", "addmm", "mm", "bmm", "baddbmm", "matmul")


def accepts(kind: str, argument: Argument) -> bool:
    """Whether a parameter of ``kind`` (``"Optional[List[int]]"``) takes the argument.

    A reference stands for a tensor or a size, which the run on shapes tells apart. A list of numbers may be one number,
    which torch repeats; placement (``Device``, ``Layout``) is in no program.
    """
    if kind.startswith("Optional["):
        return argument is None or accepts(_inside(kind), argument)
    if kind.startswith("List["):
        inner = _inside(kind)
        if inner == "Tensor":
            return isinstance(argument, Ref) or (
                isinstance(argument, tuple) and all(isinstance(atom, Ref) for atom in argument)
            )
        if inner == "Optional[Tensor]":
            return isinstance(argument, tuple) and all(atom is None or isinstance(atom, Ref) for atom in argument)
        return all(_is(inner, atom) for atom in atoms(argument))
    return not isinstance(argument, tuple) and _is(kind, argument)


def require_sense(operator: str, given: Mapping[str, Any]) -> None:
    """Check what an operator would refuse on tensors only.

    Args:
        operator: Its name in the table.
        given: Arguments by name, with tensors (of any device) and sizes in place of references.

    Raises:
        ValueError: What does not fit.
    """
    name = operator.removeprefix("aten.").partition(".")[0]
    if name in ("embedding", "index"):
        _places(given["indices"] if name == "index" else [given["indices"]])
    if name in _BITWISE and any(isinstance(each, Tensor) and each.is_floating_point() for each in given.values()):
        raise ValueError("bits of floating point numbers")
    if name in ("full", "new_full", "full_like"):
        _holds(given)
    if not name.startswith(_PRODUCTS):
        return
    found = {value.dtype for value in given.values() if isinstance(value, Tensor)}
    if len(found) > 1:
        raise ValueError(f"element types {', '.join(sorted(map(str, found)))} in one product")
    if name.startswith("conv"):
        _convolution(name, given)


def _places(indices: Sequence[Tensor | None]) -> None:
    """By a mask, what is found would have a size that depends on its values."""
    if all(each is None for each in indices):
        raise ValueError("places along no axis")
    for each in indices:
        found = each.dtype if isinstance(each, Tensor) else type(each)
        if each is not None and found not in _INDICES:
            raise ValueError(f"places are looked up by {found}")


def _holds(given: Mapping[str, Any]) -> None:
    like, named, value = given.get("self"), given.get("dtype"), given["fill_value"]
    dtype = dtypes.BY_NAME[named] if named else like.dtype if isinstance(like, Tensor) else _DEFAULT.get(type(value))
    if dtype in (None, torch.bool) or isinstance(value, Tensor):
        return
    if dtype.is_floating_point:
        fits = not isfinite(value) or abs(value) <= torch.finfo(dtype).max
    else:
        fits = isfinite(value) and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max
    if not fits:
        raise ValueError(f"{value} in {dtype}")


def _convolution(name: str, given: Mapping[str, Any]) -> None:
    values, weight = given["input"], given["weight"]
    axes = weight.dim() - 2
    groups = given.get("groups", 1)
    is_transposed = name.startswith("conv_transpose") or given.get("transposed", False)
    lists = {key: given[key] for key in ("stride", "padding", "dilation", "output_padding") if key in given}
    for key, numbers in lists.items():
        if isinstance(numbers, list) and len(numbers) not in (1, axes):
            raise ValueError(f"{key} {numbers} for {axes} axes")
    if groups < 1 or weight.shape[0] < groups or weight.shape[0] % groups:
        raise ValueError(f"{groups} groups for a weight of {tuple(weight.shape)}")
    channels = values.dim() - weight.dim() + 1
    inward = weight.shape[0] if is_transposed else weight.shape[1] * groups
    if channels not in (0, 1) or values.shape[channels] != inward:
        raise ValueError(f"an input of {tuple(values.shape)} for {inward} channels and {axes} axes")
    outward = weight.shape[1] * groups if is_transposed else weight.shape[0]
    bias = given.get("bias")
    if bias is not None and tuple(bias.shape) != (outward,):
        raise ValueError(f"a bias of {tuple(bias.shape)} for {outward} channels")
    _steps(lists, axes)


def _steps(lists: Mapping[str, Any], axes: int) -> None:
    stride, dilation, output_padding = (
        _repeated(lists.get(key, [default]), axes)
        for key, default in (("stride", 1), ("dilation", 1), ("output_padding", 0))
    )
    if min([*stride, *dilation], default=1) < 1:
        raise ValueError(f"stride {stride} and dilation {dilation}")
    padding = lists.get("padding", [0])
    numbers = [*stride, *dilation, *([padding] if isinstance(padding, int) else padding)]
    if not isinstance(padding, str) and not 0 <= min(numbers, default=0) <= max(numbers, default=0) <= _MOST:
        raise ValueError(f"stride {stride}, padding {padding} and dilation {dilation}, of 0 to {_MOST}")
    for added, *steps in zip(output_padding, stride, dilation, strict=True):
        if not 0 <= added < max(steps):
            raise ValueError(f"output_padding {output_padding} beside stride {stride} and dilation {dilation}")


def _repeated(numbers: int | list[int], axes: int) -> list[int]:
    several = [numbers] if isinstance(numbers, int) else numbers
    return several * axes if len(several) == 1 else several


def _inside(kind: str) -> str:
    return kind.partition("[")[2].removesuffix("]")


def _is(kind: str, atom: Atom) -> bool:
    if isinstance(atom, bool):
        return bool in _ATOMS.get(kind, ())
    return isinstance(atom, _ATOMS.get(kind, ()))
