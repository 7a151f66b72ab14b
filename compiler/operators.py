"""The literal table of operators a program may hold, and how their arguments are named.

Every entry is a pure function of its arguments: nothing here writes to an operand, draws random numbers, reads files,
returns uninitialised memory, or has a result whose shape depends on data. ``aten.*`` entries are the reference
implementation in eager PyTorch and the oracle of every other backend; ``treering.*`` are the fused operators of
``compiler.kernels``; ``int.*`` work on sizes; ``tuple.get`` takes one result of an operator that returns several.

An operator missing here is refused by name when a model is captured. Adding one is a line below and a test.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from compiler import kernels

# One line per family, in one text: as a list it would fill 190 lines.
ATEN: Final = frozenset(
    """
    conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding convolution.default
    conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input
    linear.default addmm.default mm.default bmm.default baddbmm.default matmul.default
    embedding.default scaled_dot_product_attention.default
    _native_batch_norm_legit_no_training.default _native_batch_norm_legit.no_stats
    native_layer_norm.default layer_norm.default native_group_norm.default group_norm.default instance_norm.default
    max_pool1d.default max_pool2d.default max_pool3d.default max_pool2d_with_indices.default
    avg_pool1d.default avg_pool2d.default avg_pool3d.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default _adaptive_avg_pool2d.default adaptive_max_pool2d.default
    upsample_nearest2d.vec upsample_bilinear2d.vec pixel_shuffle.default
    relu.default gelu.default silu.default sigmoid.default tanh.default elu.default leaky_relu.default prelu.default
    hardtanh.default hardswish.default hardsigmoid.default mish.default softplus.default relu6.default
    softmax.int log_softmax.int _softmax.default _log_softmax.default
    add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
    div.Tensor_mode floor_divide.default remainder.Scalar pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
    neg.default abs.default exp.default log.default log1p.default expm1.default sqrt.default rsqrt.default
    reciprocal.default sin.default cos.default erf.default floor.default ceil.default round.default sign.default
    square.default addcmul.default clamp.default clamp_min.default clamp_max.default maximum.default minimum.default
    eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar
    ge.Tensor ge.Scalar logical_and.default logical_or.default logical_not.default
    bitwise_and.Tensor bitwise_or.Tensor bitwise_not.default __and__.Tensor __or__.Tensor
    where.self where.ScalarOther where.ScalarSelf where.Scalar
    masked_fill.Scalar masked_fill.Tensor isnan.default isinf.default
    mean.default mean.dim sum.default sum.dim_IntList amax.default amin.default max.dim min.dim
    argmax.default argmin.default var.correction std.correction prod.dim_int cumsum.default any.dim all.dim
    _weight_norm.default topk.default linalg_vector_norm.default logsumexp.default
    reshape.default view.default _unsafe_view.default flatten.using_ints unflatten.int permute.default
    transpose.int t.default unsqueeze.default squeeze.default squeeze.dim squeeze.dims expand.default repeat.default
    slice.Tensor select.int narrow.default cat.default stack.default split.Tensor split_with_sizes.default
    chunk.default unbind.int gather.default index_select.default index.Tensor flip.default roll.default
    constant_pad_nd.default pad.default tril.default triu.default
    clone.default contiguous.default alias.default detach.default lift_fresh_copy.default _to_copy.default to.dtype
    full.default full_like.default zeros.default ones.default zeros_like.default ones_like.default
    new_full.default new_zeros.default new_ones.default
    arange.default arange.start arange.start_step scalar_tensor.default
    sym_size.int
    """.split()  # noqa: SIM905 (see above)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of an operator, as its schema names it; ``kind`` is its type there (``"Optional[Tensor]"``)."""

    name: str
    kind: str
    keyword_only: bool
    has_default: bool
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A pure function with named arguments, and the devices where it has an implementation."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    devices: tuple[str, ...]


def _required(**kinds: str) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, kind=kind, keyword_only=False, has_default=False, default=None)
        for name, kind in kinds.items()
    )


def _on_sizes(name: str, function: Callable[..., Any]) -> Operator:
    return Operator(name=name, function=function, parameters=_required(a="int", b="int"), devices=("cpu",))


HOST: Final[dict[str, Operator]] = {
    "int.add": _on_sizes("int.add", operator.add),
    "int.sub": _on_sizes("int.sub", operator.sub),
    "int.mul": _on_sizes("int.mul", operator.mul),
    "int.floordiv": _on_sizes("int.floordiv", operator.floordiv),
    "tuple.get": Operator(
        name="tuple.get",
        function=operator.getitem,
        parameters=_required(of="List[Tensor]", index="int"),
        devices=("cpu", "cuda"),
    ),
}
FUSED: Final = frozenset(name if "." in name else f"{name}.default" for name in kernels.OPERATIONS)
_HOST_NAMES: Final = {entry.function: name for name, entry in HOST.items()}


@cache
def find(name: str) -> Operator | None:
    """The operator of this name (``"aten.relu.default"``, ``"int.mul"``), or None when the table lacks it."""
    if name in HOST:
        return HOST[name]
    namespace, _, rest = name.partition(".")
    if namespace == "aten" and rest in ATEN:
        return _torch(name)
    if namespace == kernels.NAMESPACE and rest in FUSED:
        kernels.register()
        return _torch(name)
    return None


def name_of(target: object) -> str:
    """The name of a target of an FX ``call_function`` node, whether the table has it or not."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if callable(target) and target in _HOST_NAMES:
        return _HOST_NAMES[target]
    return getattr(target, "__name__", str(target))


def _torch(name: str) -> Operator:
    namespace, packet, overload = name.split(".")
    function: torch._ops.OpOverload[Any, Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    parameters = tuple(
        Parameter(
            name=argument.name,
            kind=str(argument.real_type),
            keyword_only=argument.kwarg_only,
            has_default=argument.has_default_value(),
            default=argument.default_value,
        )
        for argument in function._schema.arguments
    )
    return Operator(name=name, function=function, parameters=parameters, devices=("cpu", "cuda"))
