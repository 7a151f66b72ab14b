"""Fused operators: what libraries do not fuse, each with a reference in eager PyTorch and kernels by device.

``torch.ops.treering.linear_act`` (a product, a bias and an activation), ``layernorm_act``, ``add_layernorm``,
``rmsnorm`` and ``softmax`` (with a mask) are operators that programs may hold, as ``aten`` ones are. On the CPU each
runs its reference; on a GPU one Triton kernel, which reads its operands once.

    compiler.kernels.register()
    torch.ops.treering.layernorm_act(x, gain, bias, 1e-5, "gelu")

Where to look: ``operations`` is the table, ``reference`` says what each operator computes, ``operands`` what it
refuses. ``linear_act``, ``layernorm_act``, ``add_layernorm``, ``rmsnorm`` and ``softmax`` are the kernels; ``rows`` and
``activation`` hold what they share. ``configurations`` tells how they are launched on which device and what that was
measured to reach, ``launching`` is the way from a call to the GPU. ``docs/kernels.md`` has the figures.

Triton is imported by the kernels' modules alone, when the first one runs: ``import compiler`` needs none.
"""

from compiler.kernels.configurations import config_for
from compiler.kernels.errors import BudgetError, ChoiceError, KernelError, OperandError, ShapeError
from compiler.kernels.operations import NAMESPACE, OPERATIONS, register

__all__ = [
    "NAMESPACE",
    "OPERATIONS",
    "BudgetError",
    "ChoiceError",
    "KernelError",
    "OperandError",
    "ShapeError",
    "config_for",
    "register",
]
