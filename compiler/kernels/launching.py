"""From operands to a running kernel, with as little Python in between as there can be.

Triton's ``kernel[grid](…)`` binds, specialises and looks up every argument at each call. Here that happens once for
each kind of call: what decides about a launch (shapes, strides, dtypes, device, words) is a tuple of ``Operand`` and
words, a ``Launch`` is prepared for it once, and from then on only pointers are passed. ``docs/kernels.md`` has the
microseconds. Under ``TRITON_INTERPRET=1`` a launch runs the kernel in NumPy, on tensors of the CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import triton
from torch import Tensor

from compiler.kernels.errors import OperandError

INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
_ALIGNMENT_BYTES: Final = 16  # Triton compiles another kernel for pointers that are not so aligned


def require_dtype(operator: str, dtype: torch.dtype) -> None:
    """Refuse what no kernel computes.

    Raises:
        OperandError: The dtype is not float16, bfloat16 or float32.
    """
    if dtype not in DTYPES:
        raise OperandError(
            operator=operator,
            operand="x",
            quality="dtype",
            found=dtype,
            expected=f"one of {', '.join(map(str, DTYPES))}",
            next_step="Convert it, or call the reference in compiler.kernels.reference.",
        )


class Launch:
    """A kernel with its grid and every argument but the tensors.

    Args:
        kernel: A function under ``triton.jit`` whose first parameters are tensors (or None).
        grid: Programs along up to three axes; with none along one of them nothing runs.
        settings: The kernel's further arguments, in its order.
        device: Where the tensors lie.
        copied: Positions of tensors that are made contiguous first.
        options: ``num_warps``, ``num_stages``.
    """

    def __init__(
        self,
        kernel: Any,
        *,
        grid: Sequence[int],
        settings: Sequence[Any],
        device: torch.device,
        copied: Sequence[int] = (),
        **options: int,
    ) -> None:
        self._kernel, self._settings, self._copied, self._options = kernel, tuple(settings), tuple(copied), options
        self._grid = (*grid, 1, 1)[:3]
        self._device = device.index
        self._run: Any = None if all(self._grid) else _nothing

    def __call__(self, *tensors: Tensor | None) -> None:
        """Run on these tensors, ordered by the current stream of their device."""
        if self._device is not None and self._device != torch.cuda.current_device():
            with torch.cuda.device(self._device):
                self._launch(tensors)
        else:
            self._launch(tensors)

    def _launch(self, tensors: Sequence[Tensor | None]) -> None:
        if self._copied:
            tensors = [
                tensor.contiguous() if tensor is not None and index in self._copied else tensor
                for index, tensor in enumerate(tensors)
            ]
        pointers: list[int | None] = []
        low_bits = 0
        for tensor in tensors:
            pointer = None if tensor is None else tensor.data_ptr()
            low_bits |= pointer or 0
            pointers.append(pointer)
        is_aligned = low_bits % _ALIGNMENT_BYTES == 0
        if self._run is not None and is_aligned:
            self._run(*pointers, *self._settings)
        elif self._run is not _nothing:
            compiled = self._kernel[self._grid](*tensors, *self._settings, **self._options)
            if is_aligned and not INTERPRETED:
                self._run = self._straight(compiled)

    def _straight(self, compiled: Any) -> Callable[..., None]:
        """What ``compiled[grid]`` does, without asking anew which device it is and whether somebody traces launches."""
        run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
        grid, device, stream_of = self._grid, self._device, torch._C._cuda_getCurrentRawStream

        def launch(*arguments: Any) -> None:
            run(*grid, stream_of(device), function, metadata, None, None, None, *arguments)

        return launch


def _nothing(*arguments: Any) -> None:
    """Runs no program."""
