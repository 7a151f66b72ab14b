"""A nested state ↔ a flat list of nodes and a table of named tensors.

The state of a training run is nested: dicts with string or integer keys, lists, tuples, numbers, tensors, arrays.
It is written in pre-order, of a dict the key and then the value, so that no message of the format contains itself.
Every kind comes back as it went in (a tuple as a tuple, ``True`` as ``True``, a float with its bits); a value
without a row in the tables below is refused with its path, never guessed at.

A tensor at the top of a flat state dict is named by its key as it stands; deeper ones by their path, ``/`` between
the parts and JSON-pointer escapes inside them. Two tensors with one name are refused.
"""

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from ckpt.errors import UnsupportedStateError, VersionError
from ckpt.format.bounds import MAX_RECORDS
from ckpt.format.dtypes import name_of, torch_dtype

MAX_DEPTH = 64


class Kind(IntEnum):
    """What a node is; the numbers are those of ``proto/checkpoint.proto``."""

    NONE = 1
    BOOL = 2
    INT = 3
    FLOAT = 4
    COMPLEX = 5
    STR = 6
    BYTES = 7
    DTYPE = 8
    DEVICE = 9
    NUMPY_SCALAR = 10
    LIST = 11
    TUPLE = 12
    SIZE = 13
    DICT = 14
    ORDERED_DICT = 15
    COUNTER = 16
    TENSOR = 17
    PARAMETER = 18
    NDARRAY = 19


SEQUENCES: dict[Kind, type] = {Kind.LIST: list, Kind.TUPLE: tuple, Kind.SIZE: torch.Size}
MAPPINGS: dict[Kind, type] = {Kind.DICT: dict, Kind.ORDERED_DICT: OrderedDict, Kind.COUNTER: Counter}
TENSORS = frozenset({Kind.TENSOR, Kind.PARAMETER, Kind.NDARRAY})
NUMPY_DTYPES = frozenset(
    ("|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<c8", "<i8", "<u8", "<f8", "<c16")
)
KEYS = frozenset({Kind.NONE, Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.STR, Kind.BYTES})

_ARRAYS = (torch.Tensor, np.ndarray)
_CONTAINERS = {kind_type: kind for kind, kind_type in (SEQUENCES | MAPPINGS).items()}
_SCALARS: dict[type, Kind] = {
    type(None): Kind.NONE,
    bool: Kind.BOOL,
    int: Kind.INT,
    float: Kind.FLOAT,
    complex: Kind.COMPLEX,
    str: Kind.STR,
    bytes: Kind.BYTES,
    torch.dtype: Kind.DTYPE,
    torch.device: Kind.DEVICE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value: a scalar's ``data``, a container's ``count``, or the ``name`` of a tensor."""

    kind: Kind
    count: int = 0
    data: bytes = b""
    name: str = ""
    requires_grad: bool = False


def flatten(state: object) -> tuple[tuple[Node, ...], dict[str, torch.Tensor]]:
    """Nodes in pre-order, and the tensors by name in the order in which they are met.

    Raises:
        UnsupportedStateError: a value that has no row in the tables, or two tensors with one name.
    """
    nodes: list[Node] = []
    tensors: dict[str, torch.Tensor] = {}
    _flatten(state, (), nodes, tensors)
    return tuple(nodes), tensors


def _flatten(value: object, path: tuple[str, ...], nodes: list[Node], tensors: dict[str, torch.Tensor]) -> None:
    if len(path) > MAX_DEPTH:
        raise UnsupportedStateError(tensor_name(path), f"nested deeper than {MAX_DEPTH} levels", "flatten it")
    kind = _CONTAINERS.get(type(value))
    if len(nodes) + (0 if kind is None else len(value)) >= MAX_RECORDS:  # type: ignore[arg-type]
        raise UnsupportedStateError("", f"of more than {MAX_RECORDS} values", "store long lists as one tensor")
    if kind in SEQUENCES:
        nodes.append(Node(kind=kind, count=len(value)))  # type: ignore[arg-type]
        for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            _flatten(item, (*path, str(index)), nodes, tensors)
    elif kind in MAPPINGS:
        _flatten_mapping(kind, value, path, nodes, tensors)  # type: ignore[arg-type]
    elif isinstance(value, _ARRAYS):
        nodes.append(_reference(value, tensor_name(path), tensors))
    else:
        nodes.append(_scalar(value, path))


def _flatten_mapping(
    kind: Kind,
    value: Mapping[object, object],
    path: tuple[str, ...],
    nodes: list[Node],
    tensors: dict[str, torch.Tensor],
) -> None:
    nodes.append(Node(kind=kind, count=len(value)))
    for key, item in value.items():
        here = (*path, repr(key))
        if _SCALARS.get(type(key)) not in KEYS:
            found = f"under a key that is a {type(key).__qualname__}"
            raise UnsupportedStateError(tensor_name(here), found, "use a string or a number")
        nodes.append(_scalar(key, here))
        _flatten(item, (*path, str(key)), nodes, tensors)
    if kind is Kind.ORDERED_DICT:
        _flatten(getattr(value, "_metadata", None), (*path, "_metadata"), nodes, tensors)


def _reference(value: torch.Tensor | np.ndarray[Any, Any], name: str, tensors: dict[str, torch.Tensor]) -> Node:
    if name in tensors:
        raise UnsupportedStateError(name, "the second tensor of that name", "rename one of the keys")
    if isinstance(value, np.ndarray):
        tensors[name] = _tensor_of(value, name)
        return Node(kind=Kind.NDARRAY, name=name, data=value.dtype.str.encode())
    tensors[name] = value
    kind = Kind.PARAMETER if type(value) is torch.nn.Parameter else Kind.TENSOR
    return Node(kind=kind, name=name, requires_grad=value.requires_grad)


def _tensor_of(array: np.ndarray[Any, Any], name: str) -> torch.Tensor:
    if type(array) is not np.ndarray:
        raise UnsupportedStateError(name, f"a {type(array).__qualname__}", "store numpy.asarray() of it and its mask")
    whole = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    if array.dtype.str not in NUMPY_DTYPES or not whole:
        raise UnsupportedStateError(
            name, f"an array of dtype {array.dtype} and strides {array.strides}", "store it as a plain numeric copy"
        )
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _scalar(value: object, path: tuple[str, ...]) -> Node:
    if isinstance(value, np.generic):
        if value.dtype.str not in NUMPY_DTYPES:
            raise UnsupportedStateError(tensor_name(path), f"a NumPy scalar {value.dtype}", "convert it with .item()")
        return Node(kind=Kind.NUMPY_SCALAR, name=value.dtype.str, data=value.tobytes())
    kind = _SCALARS.get(type(value))
    if kind is None:
        raise UnsupportedStateError(
            tensor_name(path), f"a {type(value).__qualname__}", "store its state_dict() or plain values instead"
        )
    if kind is Kind.DTYPE and name_of(value) is None:  # type: ignore[arg-type]
        raise UnsupportedStateError(tensor_name(path), f"the dtype {value}", "store its name as a string")
    try:
        return Node(kind=kind, data=encode_scalar(kind, value))
    except UnicodeEncodeError:
        raise UnsupportedStateError(
            tensor_name(path), "text with a lone surrogate", "store it as bytes, or decode it anew"
        ) from None


def encode_scalar(kind: Kind, value: Any) -> bytes:
    """The bytes that stand for a scalar on disk."""
    return _ENCODERS[kind](value)


_ENCODERS: dict[Kind, Callable[[Any], bytes]] = {  # looked up, not compared one by one: a long list has a million
    Kind.NONE: lambda _: b"",
    Kind.BOOL: lambda value: b"\1" if value else b"\0",
    Kind.INT: lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
    Kind.FLOAT: struct.Struct("<d").pack,
    Kind.COMPLEX: lambda value: struct.pack("<dd", value.real, value.imag),
    Kind.STR: str.encode,
    Kind.BYTES: bytes,
    Kind.DTYPE: lambda value: str(name_of(value)).encode(),
    Kind.DEVICE: lambda value: str(value).encode(),
}


def tensor_name(path: tuple[str, ...]) -> str:
    """The name of the tensor at a path: a top-level key as it stands, deeper ones escaped and joined by ``/``."""
    if not path:
        return "value"
    if len(path) == 1:
        return path[0]
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def unflatten(nodes: tuple[Node, ...], tensors: Mapping[str, torch.Tensor]) -> object:
    """The state whose nodes these are, with ``tensors`` in their places; checked nodes only."""
    return _build(iter(nodes), tensors)


def _build(nodes: Iterator[Node], tensors: Mapping[str, torch.Tensor]) -> object:
    node = next(nodes)
    if node.kind in SEQUENCES:
        return SEQUENCES[node.kind](_build(nodes, tensors) for _ in range(node.count))
    if node.kind in MAPPINGS:
        mapping = MAPPINGS[node.kind]()
        for _ in range(node.count):
            key = decode_scalar(next(nodes))
            mapping[key] = _build(nodes, tensors)
        if node.kind is Kind.ORDERED_DICT:
            metadata = _build(nodes, tensors)
            if metadata is not None:
                mapping._metadata = metadata
        return mapping
    if node.kind in TENSORS:
        return _restore(node, tensors[node.name])
    return decode_scalar(node)


def _restore(node: Node, tensor: torch.Tensor) -> object:
    if node.kind is Kind.NDARRAY:
        return tensor.cpu().numpy().view(np.dtype(node.data.decode()))
    if node.kind is Kind.PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad=node.requires_grad)
    return tensor.requires_grad_() if node.requires_grad else tensor


def decode_scalar(node: Node) -> Any:
    """The scalar that a node stands for."""
    decode = _DECODERS.get(node.kind)
    return np.frombuffer(node.data, np.dtype(node.name))[0] if decode is None else decode(node.data)


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError:
        raise VersionError(f"device '{text}'", f"torch {torch.__version__}", "a torch that has it") from None


_DECODERS: dict[Kind, Callable[[bytes], Any]] = {
    Kind.NONE: lambda _: None,
    Kind.BOOL: lambda data: data == b"\1",
    Kind.INT: lambda data: int.from_bytes(data, "little", signed=True),
    Kind.FLOAT: lambda data: struct.unpack("<d", data)[0],
    Kind.COMPLEX: lambda data: complex(*struct.unpack("<dd", data)),
    Kind.STR: bytes.decode,
    Kind.BYTES: lambda data: data,
    Kind.DTYPE: lambda data: torch_dtype(data.decode()),
    Kind.DEVICE: lambda data: _device(data.decode()),
}
