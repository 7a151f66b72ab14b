"""The dtypes of the format: size of an element and name in safetensors, and the NumPy dtypes of the state."""

from __future__ import annotations

# The table of the page: size of an element, name in safetensors.
_TABLE: dict[str, tuple[int, str | None]] = {
    "bool": (1, "BOOL"),
    "uint8": (1, "U8"),
    "int8": (1, "I8"),
    "uint16": (2, "U16"),
    "int16": (2, "I16"),
    "uint32": (4, "U32"),
    "int32": (4, "I32"),
    "uint64": (8, "U64"),
    "int64": (8, "I64"),
    "float16": (2, "F16"),
    "bfloat16": (2, "BF16"),
    "float32": (4, "F32"),
    "float64": (8, "F64"),
    "complex32": (4, None),
    "complex64": (8, "C64"),
    "complex128": (16, None),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e5m2": (1, "F8_E5M2"),
    "float8_e4m3fnuz": (1, None),
    "float8_e5m2fnuz": (1, None),
    "float8_e8m0fnu": (1, None),
    "float4_e2m1fn_x2": (1, None),
    "bits1x8": (1, None),
    "bits2x4": (1, None),
    "bits4x2": (1, None),
    "bits8": (1, None),
    "bits16": (2, None),
} | {f"{sign}int{bits}": (1, None) for sign in ("u", "") for bits in range(1, 8)}
SIZES = {name: size for name, (size, _) in _TABLE.items()}
SAFETENSORS = {name: other for name, (_, other) in _TABLE.items() if other is not None}
# By the name in an adopted file; an element of F4 is half a byte, two of them one float4_e2m1fn_x2.
ADOPTED = {other: name for name, other in SAFETENSORS.items()} | {
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}
NUMPY = {
    "|b1": "bool",
    "|i1": "int8",
    "|u1": "uint8",
    "<i2": "int16",
    "<u2": "uint16",
    "<f2": "float16",
    "<i4": "int32",
    "<u4": "uint32",
    "<f4": "float32",
    "<c8": "complex64",
    "<i8": "int64",
    "<u8": "uint64",
    "<f8": "float64",
    "<c16": "complex128",
}


def has_gradient(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
