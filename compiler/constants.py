"""A program's constants in memory: where each lies in an arena, and how formulas fill it.

An arena is one run of bytes with every constant at a 64-byte boundary, in the program's order, so that two arenas of
one program are interchangeable and a worker can keep one in shared memory. Filling is all or nothing as far as checks
go: every tensor to be read and every constant to be written is checked before the first byte is written.

Left to the caller: to keep a buffer alive as long as its views, and not to fill an arena that is being read.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from typing_extensions import Buffer

from compiler import dtypes, evaluation
from compiler.definition import Literal
from compiler.errors import BufferMismatchError, MissingTensorError, TensorMismatchError
from compiler.literals import tensor_of
from compiler.specs import ConstantSpec, TensorSpec

ALIGNMENT_BYTES: Final = 64


def arena_bytes(constants: Sequence[ConstantSpec]) -> int:
    """Bytes that an arena needs, the last constant padded to the alignment too."""
    return sum(_padded(constant.size_bytes) for constant in constants)


def offsets(constants: Sequence[ConstantSpec]) -> dict[str, int]:
    """Where each constant starts in an arena, in bytes, by name."""
    starts: dict[str, int] = {}
    end = 0
    for constant in constants:
        starts[constant.name] = end
        end += _padded(constant.size_bytes)
    return starts


def views(
    constants: Sequence[ConstantSpec], buffer: Buffer | None, *, device: torch.device | None = None
) -> dict[str, Tensor]:
    """The constants' memory: views of ``buffer``, or of zeroed memory of their own, which may be on another device.

    Raises:
        BufferMismatchError: The buffer is read-only, too small, starts off a 64-byte boundary, or a device is asked for
            beside it.
    """
    if buffer is not None and device is not None and device.type != "cpu":
        raise BufferMismatchError(quality="device", found="the host's memory", expected=f"none with device={device}")
    needed = arena_bytes(constants)
    if not needed:
        return {constant.name: _empty(constant, device) for constant in constants}
    arena = torch.zeros(needed, dtype=torch.uint8, device=device) if buffer is None else _as_bytes(buffer, needed)
    if arena.data_ptr() % ALIGNMENT_BYTES:
        raise BufferMismatchError(
            quality="start",
            found=f"{arena.data_ptr() % ALIGNMENT_BYTES} bytes past a boundary",
            expected=f"a multiple of {ALIGNMENT_BYTES} bytes",
        )
    starts = offsets(constants)
    result: dict[str, Tensor] = {}
    for constant in constants:
        start = starts[constant.name]
        place = arena[start : start + constant.size_bytes].view(dtypes.BY_NAME[constant.dtype])
        result[constant.name] = place.as_strided(constant.shape, constant.strides)
    return result


def fill(
    constants: Sequence[ConstantSpec],
    out: Mapping[str, Tensor],
    *,
    tensors: Mapping[str, Tensor],
    requires: Sequence[TensorSpec],
    literals: Sequence[Literal],
    changed: Collection[str] | None,
) -> tuple[str, ...]:
    """Evaluate formulas into ``out``, in place.

    Args:
        constants: The program's constants.
        out: Constant name → its memory, of the stated dtype, shape and strides.
        tensors: Checkpoint tensors by name; others than those read are ignored.
        requires: dtype and shape of every tensor that formulas read.
        literals: The program's own tensors.
        changed: Evaluate only formulas that read one of these names; None evaluates all, literals included.

    Returns:
        Names of the constants written, in order.

    Raises:
        MissingTensorError: A tensor to be read, or a constant to be written, is not there.
        TensorMismatchError: One of them is not as stated. Nothing was written.
    """
    chosen = [
        constant for constant in constants if changed is None or not set(constant.formula.tensors).isdisjoint(changed)
    ]
    read = {name for constant in chosen for name in constant.formula.tensors}
    check_tensors([spec for spec in requires if spec.name in read], tensors)
    check_constants(chosen, out)
    leaves: dict[tuple[str, str], Tensor] = {("tensor", name): tensors[name] for name in read}
    owned = {name for constant in chosen for name in constant.formula.literals}
    leaves.update({("literal", entry.name): tensor_of(entry) for entry in literals if entry.name in owned})
    # On another device nothing is computed: threads have streams of their own there.
    here = {
        constant.name: out[constant.name] if out[constant.name].device.type == "cpu" else _empty(constant)
        for constant in chosen
    }
    with torch.no_grad():
        for constant in chosen:
            evaluation.evaluate_into(here[constant.name], constant.formula, leaves)
        for name, computed in here.items():
            if computed is not out[name]:
                out[name].copy_(computed)
    return tuple(constant.name for constant in chosen)


def check_tensors(requires: Sequence[TensorSpec], tensors: Mapping[str, Tensor]) -> None:
    """Whether every required checkpoint tensor is there, with its dtype and shape, on the CPU."""
    missing = [spec.name for spec in requires if spec.name not in tensors]
    if missing:
        raise MissingTensorError(role="checkpoint", missing=missing, given=len(tensors))
    for spec in requires:
        tensor = tensors[spec.name]
        _same("checkpoint tensor", spec.name, "dtype", dtypes.NAME.get(tensor.dtype, tensor.dtype), spec.dtype)
        _same("checkpoint tensor", spec.name, "shape", tuple(tensor.shape), spec.shape)
        _same("checkpoint tensor", spec.name, "device", tensor.device.type, "cpu")


def check_constants(constants: Sequence[ConstantSpec], given: Mapping[str, Tensor]) -> None:
    """Whether every constant's memory is there, with its dtype, shape and strides, all on one device."""
    missing = [constant.name for constant in constants if constant.name not in given]
    if missing:
        raise MissingTensorError(role="constants", missing=missing, given=len(given))
    device = device_of(given)
    for constant in constants:
        tensor = given[constant.name]
        _same("constant", constant.name, "dtype", dtypes.NAME.get(tensor.dtype, tensor.dtype), constant.dtype)
        _same("constant", constant.name, "shape", tuple(tensor.shape), constant.shape)
        _same("constant", constant.name, "strides", tensor.stride(), constant.strides)
        _same("constant", constant.name, "device", str(tensor.device), str(device))


def device_of(constants: Mapping[str, Tensor]) -> torch.device:
    """Where the first of some constants is; without any, the CPU."""
    return next((tensor.device for tensor in constants.values()), torch.device("cpu"))


def _same(role: str, name: str, quality: str, found: object, expected: object) -> None:
    if found != expected:
        raise TensorMismatchError(role=role, name=name, quality=quality, found=found, expected=expected)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _empty(constant: ConstantSpec, device: torch.device | None = None) -> Tensor:
    dtype = dtypes.BY_NAME[constant.dtype]
    return torch.empty_strided(constant.shape, constant.strides, dtype=dtype, device=device)


def _as_bytes(buffer: Buffer, needed: int) -> Tensor:
    with memoryview(buffer) as view:
        if view.readonly:
            raise BufferMismatchError(quality="access", found="read-only", expected="writable")
        if view.nbytes < needed:
            raise BufferMismatchError(quality="size", found=f"{view.nbytes} bytes", expected=f"at least {needed} bytes")
    return torch.frombuffer(buffer, dtype=torch.uint8, count=needed)
