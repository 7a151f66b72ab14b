"""The dtypes a checkpoint can hold: one frozen table, torch's own names on disk.

A dtype that safetensors names too is written under that name, so that its readers see the tensor; the others lie as
plain bytes beside. Adding a row is a compatible change of the format, altering one is not.
"""

from dataclasses import dataclass

import torch

from ckpt.errors import VersionError


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """``size_bytes`` of one element; ``safetensors`` is the name it is written under there, None for as bytes.

    ``mantissa_bits`` are those below the exponent, of complex numbers in each part; 0 where there is no exponent.

    ``understood`` is a name that is read in the files of others but not written; ``packed``, how many elements that
    format counts in one of ours.
    """

    name: str
    size_bytes: int
    mantissa_bits: int = 0
    safetensors: str | None = None
    understood: str | None = None
    packed: int = 1


# An element takes a byte of its own, whose eight bits are all kept. torch views and saves them, but copies none.
NARROW = tuple(f"{sign}int{bits}" for sign in ("u", "") for bits in range(1, 8))

_TABLE = (
    DType(name="bool", size_bytes=1, safetensors="BOOL"),
    DType(name="uint8", size_bytes=1, safetensors="U8"),
    DType(name="int8", size_bytes=1, safetensors="I8"),
    DType(name="uint16", size_bytes=2, safetensors="U16"),
    DType(name="int16", size_bytes=2, safetensors="I16"),
    DType(name="uint32", size_bytes=4, safetensors="U32"),
    DType(name="int32", size_bytes=4, safetensors="I32"),
    DType(name="uint64", size_bytes=8, safetensors="U64"),
    DType(name="int64", size_bytes=8, safetensors="I64"),
    DType(name="float16", size_bytes=2, mantissa_bits=10, safetensors="F16"),
    DType(name="bfloat16", size_bytes=2, mantissa_bits=7, safetensors="BF16"),
    DType(name="float32", size_bytes=4, mantissa_bits=23, safetensors="F32"),
    DType(name="float64", size_bytes=8, mantissa_bits=52, safetensors="F64"),
    DType(name="complex32", size_bytes=4, mantissa_bits=10),
    DType(name="complex64", size_bytes=8, mantissa_bits=23, safetensors="C64"),
    DType(name="complex128", size_bytes=16, mantissa_bits=52),
    DType(name="float8_e4m3fn", size_bytes=1, mantissa_bits=3, safetensors="F8_E4M3"),
    DType(name="float8_e5m2", size_bytes=1, mantissa_bits=2, safetensors="F8_E5M2"),
    # safetensors 0.8 names the kinds below too, but older readers reject a whole file for one of them.
    DType(name="float8_e4m3fnuz", size_bytes=1, mantissa_bits=3, understood="F8_E4M3FNUZ"),
    DType(name="float8_e5m2fnuz", size_bytes=1, mantissa_bits=2, understood="F8_E5M2FNUZ"),
    DType(name="float8_e8m0fnu", size_bytes=1, understood="F8_E8M0"),
    DType(name="float4_e2m1fn_x2", size_bytes=1, understood="F4", packed=2),
    DType(name="bits1x8", size_bytes=1),
    DType(name="bits2x4", size_bytes=1),
    DType(name="bits4x2", size_bytes=1),
    DType(name="bits8", size_bytes=1),
    DType(name="bits16", size_bytes=2),
    *(DType(name=name, size_bytes=1) for name in NARROW),
)

BY_NAME = {row.name: row for row in _TABLE}
BY_SAFETENSORS = {code: row for row in _TABLE if (code := row.safetensors or row.understood)}
ADOPTABLE = frozenset(row.name for row in BY_SAFETENSORS.values())

# torch dtypes by name; a torch that lacks one cannot load it, but can still verify and patch it as bytes.
_TORCH: dict[str, torch.dtype] = {row.name: getattr(torch, row.name) for row in _TABLE if hasattr(torch, row.name)}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


def name_of(dtype: torch.dtype) -> str | None:
    """The table's name for a torch dtype, or None when it cannot be stored."""
    return _NAMES.get(dtype)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a table row.

    Raises:
        VersionError: this torch does not have it.
    """
    try:
        return _TORCH[name]
    except KeyError:
        raise VersionError(f"dtype '{name}'", f"torch {torch.__version__}", "a torch that has it") from None


# One integer (or complex) dtype for each element size: copying through it moves bits and never a float's meaning.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements seen as plain bits of the same size."""
    return tensor.view(_BITS[tensor.element_size()])
