"""Attention written out, with its scale and its masks in every place."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from compiler.passes import Reason
from tests.compiler.families.case import Case, OfSeveral, combinations

FUSED = {"fuse_attention": 1}
HEADS, ROWS, SIZE = 2, 5, 4
LOWEST = torch.finfo(torch.float32).min
SCALE = 0.3

Part = Callable[[Tensor], Tensor]
# Where the scale stands: (on queries, on keys, on keys transposed, on scores)
SCALES: dict[str, tuple[Part, Part, Part, Part]] = {
    "nowhere": (lambda q: q, lambda k: k, lambda k: k, lambda s: s),
    "times scores": (lambda q: q, lambda k: k, lambda k: k, lambda s: s * SCALE),
    "divides scores": (lambda q: q, lambda k: k, lambda k: k, lambda s: s / math.sqrt(SIZE)),
    "times queries": (lambda q: q * SCALE, lambda k: k, lambda k: k, lambda s: s),
    "times keys": (lambda q: q, lambda k: k * SCALE, lambda k: k, lambda s: s),
    "times transposed keys": (lambda q: q, lambda k: k, lambda k: SCALE * k, lambda s: s),
    "its root on both": (lambda q: q * SCALE**0.5, lambda k: k / SIZE**0.25, lambda k: k, lambda s: s),
    "a tensor made of numbers": (
        lambda q: q,
        lambda k: k,
        lambda k: k,
        lambda s: s / torch.sqrt(torch.tensor(float(SIZE))),
    ),
}


def _causal() -> Tensor:
    return torch.ones(ROWS, ROWS, dtype=torch.bool).tril()


# Each takes scores and a bias of theirs that comes with the request.
MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda s, b: s,
    "added": lambda s, b: s + b[:, None, None, :],
    "added from the left": lambda s, b: b[:, None, None, :] + s,
    "filled with infinity": lambda s, b: s.masked_fill(~_causal(), -torch.inf),
    "filled with the lowest": lambda s, b: s.masked_fill((b > 9)[:, None, None, :], LOWEST),
    "chosen": lambda s, b: torch.where(_causal(), s, torch.tensor(-torch.inf)),
    "chosen the other way": lambda s, b: torch.where(~_causal(), float("-inf"), s),
    "added and filled": lambda s, b: (s + b[:, None, None, :]).masked_fill(~_causal(), LOWEST),
    "added before it is scaled": lambda s, b: (s + b[:, None, None, :]) * 0.5,
}


def _attends(scale: str, mask: str) -> Callable[..., Tensor]:
    on_q, on_k, on_kt, on_s = SCALES[scale]

    def forward(m: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = MASKS[mask](on_s(on_q(q) @ on_kt(on_k(k).transpose(-2, -1))), bias)
        return functional.dropout(scores.softmax(-1), 0.1, m.training) @ v

    return forward


def _case(name: str, forward: Callable[..., object], fused: Any = FUSED, *refused: Reason, **more: Any) -> Case:
    operand = (HEADS, ROWS, SIZE)
    return Case(
        name=f"attention, {name}",
        build=lambda: OfSeveral(forward),
        shapes=more.pop("shapes", (operand, operand, operand, (ROWS,))),
        fused=fused,
        refused=(*more.pop("before", ()), *(("fuse_attention", reason) for reason in refused)),
        factor=4.0,
        **more,
    )


def scales_and_masks() -> Iterator[Case]:
    """Every scale with every mask; some masks are constants and fold first."""
    literals = {"filled with infinity": 1, "chosen": 1, "chosen the other way": 1, "added and filled": 1}
    for scale, mask, soaked in combinations(SCALES, MASKS):
        folds = literals.get(mask, 0) + (scale == "a tensor made of numbers")
        yield _case(
            f"scale {scale}, mask {mask}",
            _attends(scale, mask),
            {**FUSED, "fold_constants": folds} if folds else FUSED,
            soaked=soaked,
        )


def other_forms() -> Iterator[Case]:
    """Batches of one axis, keys stored as columns, softmax in float32, values of another size."""
    for scale in ("times scores", "times queries"):
        on_q, _, _, on_s = SCALES[scale]
        yield _case(
            f"three axes, scale {scale}",
            lambda m, q, k, v, on_q=on_q, on_s=on_s: torch.bmm(
                on_s(torch.bmm(on_q(q), k.transpose(1, 2))).softmax(2), v
            ),
            shapes=((ROWS, SIZE),) * 3,
        )
    yield _case(
        "three axes, a mask for each row",
        lambda m, q, k, v, b: (q @ k.mT + b).softmax(-1) @ v,
        shapes=((ROWS, SIZE),) * 3 + ((ROWS, ROWS),),
    )
    yield _case(
        "keys as columns",
        lambda m, q, k, v: (q @ k * SCALE).softmax(-1) @ v,
        shapes=((HEADS, ROWS, SIZE), (HEADS, SIZE, 7), (HEADS, 7, SIZE)),
    )
    yield _case(
        "heads by permutation",
        lambda m, x: (
            lambda q, k, v: (q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) / 2.0).softmax(-1) @ v.permute(0, 2, 1, 3)
        )(*(x.unflatten(2, (HEADS, SIZE)),) * 3),
        shapes=((ROWS, HEADS * SIZE),),
    )
    yield _case(
        "values of another size",
        lambda m, q, k, v: (q @ k.transpose(2, 3) * SCALE).softmax(-1) @ v,
        shapes=((HEADS, ROWS, SIZE), (HEADS, ROWS, SIZE), (HEADS, ROWS, 3)),
    )
    for dtype in (torch.bfloat16, torch.float16):
        yield _case(
            f"softmax in float32 for {str(dtype)[6:]}",
            lambda m, q, k, v: (q @ k.transpose(2, 3) * SCALE).softmax(-1, dtype=torch.float32).to(q.dtype) @ v,
            shapes=((HEADS, ROWS, SIZE),) * 3,
            dtype=dtype,
        )


def refused() -> Iterator[Case]:
    """Attention that one operator would not compute."""
    three = ((HEADS, ROWS, SIZE),) * 3
    yield _case(
        "weights are returned",
        lambda m, q, k, v: (lambda w: (w @ v, w))((q @ k.mT).softmax(-1)),
        {},
        Reason.OTHER_USE,
        shapes=three,
    )
    yield _case(
        "scores are read",
        lambda m, q, k, v: (lambda s: s.softmax(-1) @ v + s.sum())(q @ k.mT),
        {},
        Reason.OTHER_USE,
        shapes=three,
    )
    yield _case(
        "masked with a small number",
        lambda m, q, k, v: (q @ k.mT).masked_fill(~_causal(), -1e4).softmax(-1) @ v,
        {"fold_constants": 1},
        Reason.MASK_VALUE,
        shapes=three,
    )
    yield _case(
        "scaled by a tensor",
        lambda m, q, k, v, t: (q @ k.mT * t[:, None, None, None]).softmax(-1) @ v,
        {},
        Reason.SCALE,
        shapes=(*three, ()),
    )
    yield _case(
        "scaled by a negative number",
        lambda m, q, k, v: (q @ k.mT * -0.5).softmax(-1) @ v,
        {},
        Reason.SCALE,
        shapes=three,
    )
    yield _case(
        "values of another dtype than queries",
        lambda m, q, k, v: (q @ k.mT).float().softmax(-1) @ v.float(),
        {},
        Reason.DTYPE_CHANGE,
        shapes=three,
        dtype=torch.bfloat16,
    )
    yield _case("softmax over queries", lambda m, q, k, v: (q @ k.mT).softmax(-2) @ v, {}, Reason.SHAPE, shapes=three)
    yield _case(
        "keys of one head for all",
        lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v,
        {},
        Reason.SHAPE,
        shapes=((HEADS, ROWS, SIZE), (1, ROWS, SIZE), (1, ROWS, SIZE)),
    )
    yield _case(
        "a mask of more heads than scores",
        lambda m, q, k, v, b: (q @ k.mT + b).softmax(-1) @ v,
        {},
        Reason.SHAPE,
        shapes=((1, ROWS, SIZE), (1, ROWS, SIZE), (HEADS, ROWS, SIZE), (HEADS, ROWS, ROWS)),
    )


def attention() -> Iterator[Case]:
    """All of them."""
    yield from scales_and_masks()
    yield from other_forms()
    yield from refused()
