"""Batch norms after, before and beside convolutions and linear layers."""

from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from compiler.passes import Reason
from tests.compiler.families.case import Case, Function, combinations

AFTER, AHEAD, AFFINE = "fold_batchnorm", "fold_batchnorm_ahead", "expand_batchnorm"
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
KINDS = ("plain", "grouped", "depthwise", "transposed", "transposed grouped")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu in place": lambda x: functional.relu(x, inplace=True),
    "relu": functional.relu,
    "hardswish in place": lambda x: functional.hardswish(x, inplace=True),
    "add in place": lambda x: x.add_(1.0),
}
FORMATS = {1: (torch.contiguous_format,), 2: (torch.contiguous_format, torch.channels_last)}
FORMATS[3] = (torch.contiguous_format, torch.channels_last_3d)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _conv(rank: int, kind: str, bias: bool) -> nn.Module:
    groups = {"plain": 1, "grouped": 2, "depthwise": 4, "transposed": 1, "transposed grouped": 2}[kind]
    if kind.startswith("transposed"):
        return TRANSPOSED[rank - 1](4, 8, 3, stride=2, padding=1, output_padding=1, groups=groups, bias=bias)
    return CONVS[rank - 1](4, 8, 3, padding=1, groups=groups, bias=bias)


def _as_modules(conv: nn.Module, norm: nn.Module, act: Callable[[Tensor], Tensor]) -> nn.Module:
    return Function(lambda m, x: act(m.norm(m.conv(x))), conv=conv, norm=norm)


def _as_functions(conv: Any, norm: Any, act: Callable[[Tensor], Tensor]) -> nn.Module:
    """The same without a module's call: weights and statistics are handed to functions."""
    rank = conv.weight.dim() - 2

    def forward(m: Any, x: Tensor) -> Tensor:
        c, n = m.conv, m.norm
        if isinstance(c, TRANSPOSED):
            call = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
            y = call(x, c.weight, c.bias, c.stride, c.padding, c.output_padding, c.groups)
        else:
            call = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
            y = call(x, c.weight, c.bias, c.stride, c.padding, c.dilation, c.groups)
        return act(functional.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps))

    return Function(forward, conv=conv, norm=norm)


def after_convolutions() -> Iterator[Case]:
    """Every rank, kind, bias and gain, with the other axes in turn; and all of those for the plainest."""
    forms, acts, dtypes = cycle((_as_modules, _as_functions)), cycle(ACTIVATIONS), cycle(DTYPES)
    for turn, (rank, kind, bias, affine) in enumerate(product((1, 2, 3), KINDS, (True, False), (True, False))):
        formats = FORMATS[rank]
        yield _after(
            rank, kind, bias, affine, next(dtypes), formats[turn % len(formats)], turn % 4 != 3, next(forms), next(acts)
        )
    for dtype, memory, wild, form, act, soaked in combinations(
        DTYPES, FORMATS[2], (True, False), (_as_modules, _as_functions), ("none", "relu in place", "relu")
    ):
        yield _after(2, "plain", True, True, dtype, memory, wild, form, act, soaked=soaked)


def _after(
    rank: int,
    kind: str,
    bias: bool,
    affine: bool,
    dtype: torch.dtype,
    memory: torch.memory_format,
    wild: bool,
    form: Callable[..., nn.Module],
    act: str,
    *,
    soaked: bool = False,
) -> Case:
    words = [f"conv{rank}d", kind, "bias" if bias else "no bias", "affine" if affine else "plain norm", str(dtype)[6:]]
    words += [str(memory)[6:], "wild" if wild else "fresh", form.__name__[1:], act]
    return Case(
        name=", ".join(words),
        build=lambda: form(_conv(rank, kind, bias), NORMS[rank - 1](8, affine=affine), ACTIVATIONS[act]),
        shapes=((4, *(4,) * rank),),
        fused={AFTER: 1},
        dtype=dtype,
        memory_format=memory,
        wild=wild,
        soaked=soaked,
    )


def after_linear() -> Iterator[Case]:
    """Rows of features; with an axis between batch and features the norm is over another one."""
    for bias, affine, dtype, wild, soaked in combinations(
        (True, False), (True, False), (torch.float32, torch.bfloat16), (True, False)
    ):
        yield Case(
            name=f"linear, bias {bias}, affine {affine}, {str(dtype)[6:]}, {'wild' if wild else 'fresh'}",
            build=lambda bias=bias, affine=affine: nn.Sequential(
                nn.Linear(6, 5, bias=bias), nn.BatchNorm1d(5, affine=affine), nn.ReLU(inplace=True)
            ),
            shapes=((6,),),
            fused={AFTER: 1},
            dtype=dtype,
            wild=wild,
            soaked=soaked,
        )
    yield Case(
        name="linear over three axes",
        build=lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(4)),
        shapes=((4, 6),),
        fused={AFFINE: 1},
        refused=((AFTER, Reason.CHANNEL_AXIS), (AHEAD, Reason.UNSUPPORTED_CONSUMER)),
    )


def before_layers() -> Iterator[Case]:
    """Folded ahead without padding, a multiply-add with it."""
    for rank, groups, bias, padding, soaked in combinations((1, 2, 3), (1, 2), (True, False), (0, 1)):
        refused = ((AFTER, Reason.UNSUPPORTED_PRODUCER),)
        yield Case(
            name=f"norm, conv{rank}d, groups {groups}, bias {bias}, padding {padding}",
            build=lambda rank=rank, groups=groups, bias=bias, padding=padding: nn.Sequential(
                NORMS[rank - 1](4), CONVS[rank - 1](4, 6, 3, padding=padding, groups=groups, bias=bias), nn.ReLU()
            ),
            shapes=((4, *(5,) * rank),),
            fused={AFFINE: 1} if padding else {AHEAD: 1},
            refused=(*refused, (AHEAD, Reason.PADDING)) if padding else refused,
            soaked=soaked,
        )
    for bias, affine in product((True, False), (True, False)):
        yield Case(
            name=f"norm, linear, bias {bias}, affine {affine}",
            build=lambda bias=bias, affine=affine: nn.Sequential(
                nn.BatchNorm1d(6, affine=affine), nn.Linear(6, 5, bias=bias)
            ),
            shapes=((6,),),
            fused={AHEAD: 1},
            refused=((AFTER, Reason.UNSUPPORTED_PRODUCER),),
        )
    yield Case(
        name="norm between two convolutions folds backwards",
        build=lambda: nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 3, 1)),
        shapes=((4, 5, 5),),
        fused={AFTER: 1},
    )
    yield Case(
        name="two norms around a convolution",
        build=lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)),
        shapes=((4, 5, 5),),
        fused={AFTER: 1, AHEAD: 1},
        refused=((AFTER, Reason.UNSUPPORTED_PRODUCER),),
    )
    for padding, fused in (("valid", {AHEAD: 1}), ("same", {AFFINE: 1})):
        yield Case(
            name=f"norm, convolution with padding {padding!r}",
            build=lambda padding=padding: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3, padding=padding)),
            shapes=((4, 5, 5),),
            fused=fused,
            refused=((AFTER, Reason.UNSUPPORTED_PRODUCER), *(() if AHEAD in fused else ((AHEAD, Reason.PADDING),))),
        )
    yield Case(
        name="norm, transposed convolution",
        build=lambda: nn.Sequential(nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 5, 3)),
        shapes=((4, 5, 5),),
        fused={AFFINE: 1},
        refused=((AFTER, Reason.UNSUPPORTED_PRODUCER), (AHEAD, Reason.TRANSPOSED)),
    )


def alone() -> Iterator[Case]:
    """Norms that no layer takes."""
    for rank, dtype in product((1, 2, 3), DTYPES):
        wide = dtype is torch.float32
        refused = ((AFTER, Reason.UNSUPPORTED_PRODUCER), (AHEAD, Reason.UNSUPPORTED_CONSUMER))
        yield Case(
            name=f"norm{rank}d between activations, {str(dtype)[6:]}",
            build=lambda rank=rank: nn.Sequential(nn.Tanh(), NORMS[rank - 1](4), nn.ReLU(inplace=True)),
            shapes=((4, *(3,) * rank),),
            fused={AFFINE: 1} if wide else {},
            refused=refused if wide else (*refused, (AFFINE, Reason.UNSUPPORTED_DTYPE)),
            dtype=dtype,
        )
    yield Case(
        name="norm, linear, bfloat16",
        build=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5)),
        shapes=((6,),),
        refused=(
            (AFTER, Reason.UNSUPPORTED_PRODUCER),
            (AHEAD, Reason.UNSUPPORTED_DTYPE),
            (AFFINE, Reason.UNSUPPORTED_DTYPE),
        ),
        dtype=torch.bfloat16,
    )


def _parts(**more: nn.Module) -> dict[str, nn.Module]:
    return {"conv": nn.Conv2d(4, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), **more}


def shared_and_computed() -> Iterator[Case]:
    """One module used twice, values read elsewhere, weights and statistics that are computed, writes in between."""
    consumer = (AHEAD, Reason.UNSUPPORTED_CONSUMER)

    def case(name: str, forward: Callable[..., object], fused: dict[str, int], *refused: Any, **more: Any) -> Case:
        parts = more.pop("parts", _parts)
        return Case(
            name=name,
            build=lambda: Function(forward, **parts()),
            shapes=((4, 5, 5),),
            fused=fused,
            refused=refused,
            **more,
        )

    yield case(
        "one convolution twice, a norm on one path",
        lambda m, x: m.norm(m.conv(x)) + m.conv(x * 2),
        {AFFINE: 1},
        (AFTER, Reason.SHARED_WEIGHT),
        consumer,
    )
    yield case(
        "one convolution twice, a norm on both paths",
        lambda m, x: m.norm(m.conv(x)) + m.norm(m.conv(x * 2)),
        {AFFINE: 2},
        (AFTER, Reason.SHARED_WEIGHT),
        (AFTER, Reason.SHARED_WEIGHT),
        consumer,
        consumer,
    )
    yield case(
        "one norm after two convolutions",
        lambda m, x: m.norm(m.conv(x)) + m.norm(m.other(x)),
        {AFTER: 2},
        parts=lambda: _parts(other=nn.Conv2d(4, 4, 1)),
    )
    yield case(
        "two norms after one convolution",
        lambda m, x: (lambda y: m.norm(y) + m.other(y))(m.conv(x)),
        {AFFINE: 2},
        (AFTER, Reason.OTHER_USE),
        (AFTER, Reason.OTHER_USE),
        consumer,
        consumer,
        parts=lambda: _parts(other=nn.BatchNorm2d(4)),
    )
    yield case(
        "two norms in a row",
        lambda m, x: m.other(m.norm(m.conv(x))),
        {AFTER: 2},
        parts=lambda: _parts(other=nn.BatchNorm2d(4)),
    )
    yield case(
        "the convolution's result is read beside its norm",
        lambda m, x: (lambda y: m.norm(y) + y)(m.conv(x)),
        {AFFINE: 1},
        (AFTER, Reason.OTHER_USE),
        consumer,
    )
    yield case(
        "the convolution's result is an output",
        lambda m, x: (lambda y: (m.norm(y), y))(m.conv(x)),
        {AFFINE: 1},
        (AFTER, Reason.OTHER_USE),
        consumer,
    )
    yield case(
        "a write between convolution and norm",
        lambda m, x: m.norm(m.conv(x).add_(1.0)),
        {AFFINE: 1},
        (AFTER, Reason.MUTATION),
        consumer,
    )
    yield case(
        "an activation in place between convolution and norm",
        lambda m, x: m.norm(functional.relu_(m.conv(x))),
        {AFFINE: 1},
        (AFTER, Reason.MUTATION),
        consumer,
    )
    yield case(
        "an activation between convolution and norm",
        lambda m, x: m.norm(functional.relu(m.conv(x))),
        {AFFINE: 1},
        (AFTER, Reason.UNSUPPORTED_PRODUCER),
        consumer,
    )
    yield case(
        "two writes between norm and convolution",
        lambda m, x: m.conv(m.norm(x).mul_(2.0).relu_()),
        {AFFINE: 1},
        (AFTER, Reason.UNSUPPORTED_PRODUCER),
        (AHEAD, Reason.MUTATION),
    )
    yield case(
        "a write to the norm's result",
        lambda m, x: m.norm(m.conv(x)).mul_(2.0),
        {AFTER: 1},
    )
    yield case(
        "dropout between convolution and norm",
        lambda m, x: m.norm(functional.dropout(m.conv(x), 0.5, m.training)),
        {AFTER: 1},
    )
    yield case(
        "the batch's own statistics",
        lambda m, x: m.norm(m.conv(x)),
        {},
        (AFTER, Reason.BATCH_STATISTICS),
        (AHEAD, Reason.BATCH_STATISTICS),
        (AFFINE, Reason.BATCH_STATISTICS),
        parts=lambda: _parts(norm=nn.BatchNorm2d(4, track_running_stats=False)),
    )
    yield case(
        "a weight scaled by a number",
        lambda m, x: m.norm(functional.conv2d(x, m.conv.weight * 2, m.conv.bias, padding=1)),
        {"fold_constants": 1, AFTER: 1},
    )
    yield case(
        "a weight that no formula computes",
        lambda m, x: m.norm(functional.conv2d(x, m.conv.weight.sin(), m.conv.bias, padding=1)),
        {AFFINE: 1},
        ("fold_constants", Reason.NO_FORMULA),
        (AFTER, Reason.WEIGHT_NOT_CONSTANT),
        consumer,
    )
    yield case(
        "a weight that comes with the request",
        lambda m, x: m.norm(functional.conv2d(x, m.conv.weight * x.mean(), m.conv.bias, padding=1)),
        {AFFINE: 1},
        (AFTER, Reason.WEIGHT_NOT_CONSTANT),
        consumer,
    )
    yield case(
        "statistics that come with the request",
        lambda m, x: functional.batch_norm(
            m.conv(x), x.mean((0, 2, 3)), m.norm.running_var, m.norm.weight, m.norm.bias
        ),
        {},
        (AFTER, Reason.STATISTICS_NOT_CONSTANT),
        (AHEAD, Reason.STATISTICS_NOT_CONSTANT),
        (AFFINE, Reason.STATISTICS_NOT_CONSTANT),
    )
    yield case(
        "statistics that no formula computes",
        lambda m, x: functional.batch_norm(
            m.conv(x), m.norm.running_mean.sin(), m.norm.running_var, m.norm.weight, m.norm.bias
        ),
        {},
        ("fold_constants", Reason.NO_FORMULA),
        (AFTER, Reason.STATISTICS_NOT_CONSTANT),
        (AHEAD, Reason.STATISTICS_NOT_CONSTANT),
        (AFFINE, Reason.STATISTICS_NOT_CONSTANT),
    )
    yield case(
        "a convolution of one image without its batch axis",
        lambda m, x: functional.batch_norm(
            m.conv(x[0]), m.norm.running_mean, m.norm.running_var, m.norm.weight, m.norm.bias
        ),
        {AFFINE: 1},
        (AFTER, Reason.CHANNEL_AXIS),
        consumer,
        parts=lambda: _parts(norm=nn.BatchNorm2d(5)),
    )
    yield case(
        "weight normalisation",
        lambda m, x: m.norm(m.conv(x)),
        {"fold_constants": 1, AFTER: 1},
        parts=lambda: _parts(conv=nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))),
    )


def norms() -> Iterator[Case]:
    """All of them."""
    yield from after_convolutions()
    yield from after_linear()
    yield from before_layers()
    yield from alone()
    yield from shared_and_computed()
