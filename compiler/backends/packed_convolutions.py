"""Convolutions whose weights oneDNN reads in its own blocked order, and what follows them at once.

oneDNN computes a convolution on weights in blocks of its instruction set's width. Given plain ones it reorders them in
every call. So they are reordered once, when constants are prepared, on the machine that serves. Inductor compiles these
calls with the activation or the addition that comes next.

The packed copy is derived: what is written to a weight is seen when the constants are prepared again. oneDNN packs
from row-major weights several times as quickly as from channels last, so these lie row-major in a program for it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from compiler.definition import Definition, Node, Ref
from compiler.specs import row_major

_OPERATOR = "aten.conv2d.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution over a constant that nothing else reads: node and constant by position, and how it is walked."""

    node: int
    constant: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def __call__(self, data: Tensor, weight: Tensor, bias: Tensor | None = None, *_: object, **__: object) -> Tensor:
        """In place of ``aten.conv2d``, whose arguments come in; the weight is packed, or stands for one that will be.

        Args:
            data: (N, C, H, W).
            weight: (O, C / groups, KH, KW).
            bias: (O,).
        """
        result: Tensor = torch.ops.mkldnn._convolution_pointwise.default(
            data, weight, bias, self.padding, self.stride, self.dilation, self.groups, "none", [], ""
        )
        return result

    def pack(self, weight: Tensor) -> Tensor:
        """A copy of a weight in oneDNN's order, which only oneDNN reads."""
        packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
            weight, self.padding, self.stride, self.dilation, self.groups, None
        )
        return packed


class PackedWeights:
    """Sets of packed weights, used again in place.

    AOTInductor's code keeps a reference to every tensor that it was ever bound to (torch 2.13), so a new set for each
    binding would never be freed.
    """

    def __init__(self, convolutions: Sequence[Convolution]) -> None:
        self._convolutions = convolutions
        self._free: list[list[Tensor]] = []

    def pack(self, constants: Sequence[Tensor], *, owner: object) -> list[Tensor]:
        """The constants with packed weights in their places, which are taken back when ``owner`` is gone."""
        try:
            used = self._free.pop()
        except IndexError:
            used = []
        ready, packed = list(constants), []
        for index, convolution in enumerate(self._convolutions):
            weight = convolution.pack(constants[convolution.constant])
            packed.append(used[index].copy_(weight) if used else weight)
            ready[convolution.constant] = packed[-1]
        finalize(owner, self._free.append, packed).atexit = False
        return ready


def find(definition: Definition) -> tuple[Convolution, ...]:
    """The float32 convolutions of two dimensions whose weight is a constant with one reader; none without oneDNN.

    Those are left out for which Inductor may take oneDNN's answer, which is always channels last on packed weights, for
    one that is channels first: it does where sizes are dynamic and the input is the same in both orders, since it
    has one channel, or one pixel (of which convolutions make more only with more padding than keeps the size).
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return ()
    read = Counter(value for node in definition.nodes for value in node.refs)
    read.update(output.value for output in definition.outputs)
    found = (_convolution(position, node, definition) for position, node in enumerate(definition.nodes))
    return tuple(entry for entry in found if entry and read[len(definition.inputs) + entry.constant] == 1)


def arrange(definition: Definition) -> Definition:
    """The same with row-major weights wherever they are packed."""
    packed = {convolution.constant for convolution in find(definition)}
    return replace(
        definition,
        constants=tuple(
            replace(constant, strides=row_major(constant.shape)) if index in packed else constant
            for index, constant in enumerate(definition.constants)
        ),
    )


def _convolution(position: int, node: Node, definition: Definition) -> Convolution | None:
    given = dict(node.arguments)
    if node.operator != _OPERATOR or not isinstance(given["weight"], Ref):
        return None
    index = given["weight"].value - len(definition.inputs)
    if not 0 <= index < len(definition.constants):
        return None
    constant = definition.constants[index]
    found = Convolution(
        node=position,
        constant=index,
        stride=_pair(given.get("stride", (1,))),
        padding=_pair(given.get("padding", (0,))),
        dilation=_pair(given.get("dilation", (1,))),
        groups=given.get("groups", 1),  # type: ignore[arg-type]
    )
    is_safe = constant.shape[1] * found.groups > 1 and not _makes_many_of_one(found, constant.shape[2:])
    return found if constant.dtype == "float32" and is_safe else None


def _makes_many_of_one(convolution: Convolution, kernel: tuple[int, ...]) -> bool:
    walked = zip(kernel, convolution.stride, convolution.padding, convolution.dilation, strict=True)
    return any(2 * padding - dilation * (size - 1) >= stride for size, stride, padding, dilation in walked)


def _pair(sizes: Any) -> tuple[int, int]:
    """What ``aten.conv2d`` makes of a size: one number stands for both directions."""
    many = tuple(sizes) if isinstance(sizes, tuple) else (sizes,)
    return (many[0], many[-1])
