"""Linear layers that read one input."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from compiler.passes import Reason
from tests.compiler.families.case import Case, Function

MERGE = "merge_projections"
MERGED = {MERGE: 1}


def _attend(m: Any, x: Tensor) -> Tensor:
    q, k, v = (layer(x).unflatten(2, (2, -1)).transpose(1, 2) for layer in (m.q, m.k, m.v))
    return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _layers(*biases: bool) -> dict[str, nn.Module]:
    return {name: nn.Linear(6, 8, bias=bias) for name, bias in zip("qkv", biases, strict=True)}


def _case(
    name: str, forward: Callable[..., object], parts: Callable[[], Any], fused: Any, *refused: Any, **more: Any
) -> Case:
    return Case(
        name=f"projections, {name}",
        build=lambda: Function(forward, **parts()),
        shapes=more.pop("shapes", ((5, 6),)),
        fused=fused,
        refused=refused,
        factor=4.0,
        **more,
    )


def projections() -> Iterator[Case]:
    """All of them."""
    for bias, dtype in product((True, False), (torch.float32, torch.bfloat16)):
        yield _case(
            f"three of attention, bias {bias}, {str(dtype)[6:]}",
            _attend,
            lambda bias=bias: _layers(bias, bias, bias),
            MERGED,
            dtype=dtype,
        )
    yield _case(
        "four of other widths",
        lambda m, x: m.a(x).sum(-1, keepdim=True) + m.b(x).relu() * m.c(x) - m.d(x),
        lambda: {name: nn.Linear(6, size) for name, size in zip("abcd", (3, 1, 4, 4), strict=True)},
        MERGED,
    )
    yield _case(
        "rows without an axis between",
        lambda m, x: m.q(x) * m.k(x) + m.v(x),
        lambda: _layers(True, True, True),
        MERGED,
        shapes=((6,),),
    )
    yield _case(
        "a part is changed in place",
        lambda m, x: m.q(x).relu_() * m.k(x).mul_(2.0) + m.v(x),
        lambda: _layers(True, True, True),
        MERGED,
    )
    yield _case("two are left alone", lambda m, x: m.q(x) * m.k(x), lambda: _layers(True, True, True), {})
    yield _case(
        "biases of some",
        lambda m, x: m.q(x) * m.k(x) + m.v(x),
        lambda: _layers(True, False, True),
        {},
        (MERGE, Reason.SHAPE),
    )
    yield _case(
        "one layer twice",
        lambda m, x: m.q(x) * m.k(x) + m.v(x) + m.q(x * 2),
        lambda: _layers(True, True, True),
        {},
        (MERGE, Reason.SHARED_WEIGHT),
    )
    yield _case(
        "one is an output",
        lambda m, x: (m.q(x) * m.k(x), m.v(x).view(-1, 8)),
        lambda: _layers(True, True, True),
        {},
        (MERGE, Reason.ALIAS),
    )
    yield _case(
        "a weight of the request",
        lambda m, x: m.q(x) * m.k(x) + nn.functional.linear(x, m.v.weight * x.mean()),
        lambda: _layers(True, True, True),
        {},
        (MERGE, Reason.WEIGHT_NOT_CONSTANT),
    )
