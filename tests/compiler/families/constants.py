"""What models compute from their weights alone, request after request."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from compiler.passes import Reason
from tests.compiler.families.case import Case, Function

FOLD = "fold_constants"

# name → what is done to an input (rows, 6) with a weight (6, 6), another (6, 6) and a vector (6,)
FOLDED: dict[str, Callable[[Any, Tensor], object]] = {
    "a number times a weight": lambda m, x: x @ (m.w * 2.0),
    "a quotient": lambda m, x: x @ (m.w / 3.0 - 1.0),
    "a number minus a weight": lambda m, x: x * (1.0 - m.v),
    "weights added with a factor": lambda m, x: x @ torch.add(m.w, m.u, alpha=0.5),
    "weights subtracted": lambda m, x: x @ (m.w - m.u),
    "a weight by its norm": lambda m, x: x @ (m.w / (m.w * m.w).sum(1, keepdim=True).sqrt()),
    "a weight without its mean": lambda m, x: x @ (m.w - m.w.mean(0)),
    "the total of a weight": lambda m, x: x * m.w.sum(),
    "exponential": lambda m, x: x * m.v.exp(),
    "a power": lambda m, x: x * m.v**2,
    "one over a root": lambda m, x: x * torch.rsqrt(m.v * m.v + 1.0),
    "a transposed weight": lambda m, x: x @ (-m.w.t()),
    "a permuted and flattened weight": lambda m, x: x * m.w.view(2, 3, 6).permute(1, 0, 2).reshape(6, 6).square()[0],
    "parts of two tables": lambda m, x: x + (m.w[1:3].sum(0) + m.u[2]),
    "weights side by side": lambda m, x: x @ torch.cat([m.w, m.u], 1),
    "weights stacked": lambda m, x: (x @ torch.stack([m.w, m.u])).sum(0),
    "a masked weight": lambda m, x: x @ (m.w * torch.ones(6, 6).tril()),
    "a table of angles": lambda m, x: x * torch.cos(torch.arange(6) * 0.1),
    "numbers in a row": lambda m, x: x + torch.arange(6) * 2,
}
TWICE = {"a masked weight": 2}  # the mask, and then its product with the weight


def _case(name: str, forward: Callable[..., object], folds: int, *refused: Reason, **more: Any) -> Case:
    return Case(
        name=f"constants, {name}",
        build=lambda: Function(
            forward,
            w=nn.Parameter(torch.randn(6, 6)),
            u=nn.Parameter(torch.randn(6, 6)),
            v=nn.Parameter(torch.randn(6)),
            ids=torch.arange(6),
        ),
        shapes=((6,),),
        fused={FOLD: folds} if folds else {},
        refused=tuple((FOLD, reason) for reason in refused),
        **more,
    )


def constants() -> Iterator[Case]:
    """All of them."""
    for name, forward in FOLDED.items():
        yield _case(name, forward, TWICE.get(name, 1))
    yield _case("a number times a bfloat16 weight", lambda m, x: x @ (m.w * 3.0), 1, dtype=torch.bfloat16)
    yield _case("a view of a weight that others read", lambda m, x: x @ m.w.t() + x @ m.w, 0)
    yield _case(
        "a view of a weight that nobody else reads", lambda m, x: functional.linear(x, m.w.view(3, 12).view(6, 6)), 1
    )
    yield _case("sine", lambda m, x: x * m.v.sin(), 0, Reason.NO_FORMULA)
    yield _case("a product of matrices", lambda m, x: x @ (m.w @ m.u), 0, Reason.NO_FORMULA)
    yield _case("every other row", lambda m, x: x * m.w[::2].square().sum(0), 0, Reason.NO_FORMULA)
    yield _case(
        "a weight rounded on purpose", lambda m, x: x * m.v.to(torch.bfloat16).to(x.dtype), 0, Reason.UNSUPPORTED_DTYPE
    )
    yield _case("integers", lambda m, x: x + m.ids * 3, 0, Reason.UNSUPPORTED_DTYPE)
    yield _case("a constant that is an output", lambda m, x: (x + 1, m.w * 2), 0, Reason.ALIAS)
    yield _case(
        "a weight that grows out of proportion",
        lambda m, x: x + (m.v * torch.ones(1024, 512, 1)).sum((0, 1)),
        0,
        Reason.TOO_LARGE,
        Reason.NO_FORMULA,
    )
