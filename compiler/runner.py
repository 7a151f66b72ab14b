"""A runner: a program on one backend, bound to one set of constants, ready to answer.

Native code checks nothing: a wrong shape is read as if it were right, and a missing constant ends the process. So every
constant is checked when it is bound and every input before it runs, here, for all backends alike. ``swap`` moves to
another arena; a caller that answers requests on other threads calls it between two batches, with what ``prepare`` made
beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from compiler import dtypes
from compiler.constants import check_constants, device_of
from compiler.definition import Definition
from compiler.errors import CallError, TensorMismatchError
from compiler.specs import TensorSpec


class Engine(Protocol):
    """What a backend makes of a program on this machine. Arguments were checked."""

    def prepare(self, constants: Sequence[Tensor]) -> object:
        """What it reads in place of constants: themselves, or what it derives from them as they are now.

        Called beside ``run``, and again with the same memory after that was written to.
        """
        ...

    def bind(self, prepared: Any) -> None:
        """Read what ``prepare`` returned, from now on, keeping it alive; takes no time to speak of."""
        ...

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute the outputs of contiguous inputs, which are where the constants are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Constants, and what a runner's engine derived from them: packed weights, a session, or nothing."""

    constants: Mapping[str, Tensor]
    derived: object
    engine: Engine


class Runner:
    """Callable: ``runner(*inputs) -> outputs``.

    A row's answer depends on the row, on the constants and on the sizes of the batch, never on its neighbours' values
    or its place among them (with the number of threads unchanged).

    Args:
        definition: What inputs and constants have to be.
        engine: Runs it.
        constants: Constant name → memory; kept alive and never written. A backend may read what it derived from them,
            so after writing to them call ``swap`` (``Program.rebind`` does).
    """

    def __init__(self, definition: Definition, engine: Engine, constants: Mapping[str, Tensor]) -> None:
        self._definition = definition
        self._engine = engine
        self._bounds = {dim.name: (dim.min, dim.max) for dim in definition.dims}
        self.swap(constants)

    def prepare(self, constants: Mapping[str, Tensor]) -> Prepared:
        """Derive what the backend reads in place of constants, for a swap that takes no time. May run beside calls.

        Raises:
            MissingTensorError, TensorMismatchError: A constant is not as the program states.
        """
        check_constants(self._definition.constants, constants)
        chosen = {constant.name: constants[constant.name] for constant in self._definition.constants}
        derived = self._engine.prepare(tuple(chosen.values()))
        return Prepared(constants=chosen, derived=derived, engine=self._engine)

    def swap(self, constants: Mapping[str, Tensor] | Prepared) -> None:
        """Read constants from other memory, or from the same after it was written to. On an error the old stays in use.

        Args:
            constants: As ``allocate`` gave and ``evaluate`` filled them, or what ``prepare`` made of them.

        Raises:
            MissingTensorError, TensorMismatchError: A constant is not as the program states.
            CallError: Another runner prepared them.
        """
        prepared = constants if isinstance(constants, Prepared) else self.prepare(constants)
        if prepared.engine is not self._engine:
            raise CallError(
                "constants were prepared by another runner, expected this one; call runner.prepare(constants)"
            )
        self._engine.bind(prepared.derived)
        self._bound = prepared
        self._device = device_of(prepared.constants)

    @property
    def bound(self) -> Prepared:
        """What it reads now, to come back to."""
        return self._bound

    @property
    def constants(self) -> Mapping[str, Tensor]:
        """The memory that it reads now, by constant name."""
        return self._bound.constants

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Answer one batch.

        Raises:
            TensorMismatchError: An input's dtype, shape, layout or device is not what the program takes.
        """
        self._check(inputs)
        with torch.no_grad():
            return tuple(self._engine.run(inputs))

    def _check(self, inputs: Sequence[Tensor]) -> None:
        expected = self._definition.inputs
        if len(inputs) != len(expected):
            names = ", ".join(spec.name for spec in expected)
            raise CallError(f"{len(inputs)} inputs were given, expected {len(expected)}: {names}.")
        sizes: dict[str, int] = {}
        for spec, tensor in zip(expected, inputs, strict=True):
            self._check_input(spec, tensor, sizes)

    def _check_input(self, spec: TensorSpec, tensor: Tensor, sizes: dict[str, int]) -> None:
        if tensor.dtype != dtypes.BY_NAME[spec.dtype]:
            raise _mismatch(spec, "dtype", dtypes.NAME.get(tensor.dtype, tensor.dtype), spec.dtype)
        if tensor.dim() != len(spec.shape):
            raise _mismatch(spec, "shape", tuple(tensor.shape), f"{len(spec.shape)} axes")
        for axis, (size, fixed, dim) in enumerate(zip(tensor.shape, spec.shape, spec.dims, strict=True)):
            if dim is None:
                if size != fixed:
                    raise _mismatch(spec, f"axis {axis}", size, fixed)
                continue
            low, high = self._bounds[dim]
            if not low <= size <= high:
                raise _mismatch(spec, f"axis {axis} ({dim})", size, f"{low} to {high}")
            if sizes.setdefault(dim, size) != size:
                raise _mismatch(spec, f"axis {axis} ({dim})", size, f"{sizes[dim]}, as in the inputs before it")
        if tensor.device != self._device:
            raise _mismatch(spec, "device", str(tensor.device), str(self._device))
        if not tensor.is_contiguous():
            raise _mismatch(spec, "strides", tensor.stride(), "those of a contiguous tensor (call .contiguous())")


def _mismatch(spec: TensorSpec, quality: str, found: object, expected: object) -> TensorMismatchError:
    return TensorMismatchError(role="input", name=spec.name, quality=quality, found=found, expected=expected)
