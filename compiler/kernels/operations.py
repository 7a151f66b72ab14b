"""The literal table of fused operators: name → (schema, reference, kernels by device), and how torch learns of it.

``torch.ops.treering.<name>`` is one node for ``torch.export`` and AOTInductor. On the CPU it runs the reference; on a
GPU it runs the kernel, whose module (and with it Triton) is imported when the first one is launched. While a model is
traced the reference tells shapes. They compute forwards only: torch warns of a backward pass.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

import torch

from compiler.kernels import reference

NAMESPACE: Final = "treering"

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One fused operator.

    Attributes:
        schema: Its arguments and results, as torch writes them.
        reference: In eager PyTorch.
        kernels: Device type → "module:function", of the signature of ``reference``.
    """

    schema: str
    reference: Function
    kernels: Mapping[str, str]

    def kernel(self, device: str) -> Function:
        """The kernel for a type of device, imported when it is first called."""
        module, _, name = self.kernels[device].partition(":")
        found: Function | None = None

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal found
            if found is None:
                found = cast(Function, getattr(import_module(module), name))
            return found(*arguments, **named)

        return call


OPERATIONS: Final[dict[str, Operation]] = {
    "linear_act": Operation(
        schema="(Tensor x, Tensor weight, Tensor? bias, str activation, *, str input_precision='ieee', str config='')"
        " -> Tensor",
        reference=reference.linear_act,
        kernels={"cuda": "compiler.kernels.linear_act:linear_act"},
    ),
    "layernorm_act": Operation(
        schema="(Tensor x, Tensor? gain, Tensor? bias, float eps, str activation, *, str config='') -> Tensor",
        reference=reference.layernorm_act,
        kernels={"cuda": "compiler.kernels.layernorm_act:layernorm_act"},
    ),
    "add_layernorm": Operation(
        schema="(Tensor x, Tensor residual, Tensor? gain, Tensor? bias, float eps, *, str config='') -> Tensor",
        reference=reference.add_layernorm,
        kernels={"cuda": "compiler.kernels.add_layernorm:add_layernorm"},
    ),
    "add_layernorm.with_sum": Operation(
        schema="(Tensor x, Tensor residual, Tensor? gain, Tensor? bias, float eps, *, str config='')"
        " -> (Tensor, Tensor)",
        reference=reference.add_layernorm_with_sum,
        kernels={"cuda": "compiler.kernels.add_layernorm:add_layernorm_with_sum"},
    ),
    "rmsnorm": Operation(
        schema="(Tensor x, Tensor? gain, float eps, *, str config='') -> Tensor",
        reference=reference.rmsnorm,
        kernels={"cuda": "compiler.kernels.rmsnorm:rmsnorm"},
    ),
    "softmax": Operation(
        schema="(Tensor x, Tensor? mask, *, float scale=1.0, str config='') -> Tensor",
        reference=reference.softmax,
        kernels={"cuda": "compiler.kernels.softmax:softmax"},
    ),
}


@cache
def register() -> object:
    """Make the table's operators known to torch, once; they stay as long as what is returned."""
    library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    for name, operation in OPERATIONS.items():
        library.define(name + operation.schema)
        library.impl(name, operation.reference, "CPU")
        for device in operation.kernels:
            library.impl(name, operation.kernel(device), device.upper())
        torch.library.register_fake(f"{NAMESPACE}::{name}", operation.reference, lib=library)
    return library
