"""What one node of a state may hold: each kind only its own fields, each value in one form.

Without that, bytes could hide in fields that no digest covers, and one state could have many encodings.
"""

import re

import numpy as np

from ckpt.dtypes import BY_NAME
from ckpt.errors import FormatError
from ckpt.state import MAPPINGS, NUMPY_DTYPES, SEQUENCES, TENSORS, Kind, Node, decode_scalar, encode_scalar

_FIXED_BYTES = {Kind.NONE: 0, Kind.BOOL: 1, Kind.FLOAT: 8, Kind.COMPLEX: 16}
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}(:(0|[1-9][0-9]{0,2}))?")
_COUNTED = frozenset(SEQUENCES) | frozenset(MAPPINGS)
_WITHOUT_DATA = _COUNTED | {Kind.TENSOR, Kind.PARAMETER}
_NAMED = TENSORS | {Kind.NUMPY_SCALAR}
_WITH_GRADIENT = frozenset({Kind.TENSOR, Kind.PARAMETER})


def check_node(node: Node) -> None:
    """Every rule that needs the node alone.

    Raises:
        FormatError: it breaks one.
    """
    kind = node.kind
    for field, used in (
        (node.count, kind in _COUNTED),
        (node.data, kind not in _WITHOUT_DATA),
        (node.name, kind in _NAMED),
        (node.requires_grad, kind in _WITH_GRADIENT),
    ):
        if field and not used:
            raise FormatError(_where(node), f"a field that holds {field!r:.40}", "nothing there")
    if kind not in _WITHOUT_DATA:
        _check_data(node)


def _where(node: Node) -> str:
    return f"manifest.state ({node.kind.name})"


def _check_data(node: Node) -> None:
    size = _FIXED_BYTES.get(node.kind)
    if size is not None and len(node.data) != size:
        raise FormatError(_where(node), f"{len(node.data)} bytes", f"{size}")
    match node.kind:
        case Kind.BOOL | Kind.INT:
            _expect(encode_scalar(node.kind, decode_scalar(node)) == node.data, node, "the shortest encoding")
        case Kind.STR:
            _text(node)
        case Kind.DTYPE:
            _expect(_text(node) in BY_NAME, node, "a dtype of the table")
        case Kind.DEVICE:
            _expect(_DEVICE.fullmatch(_text(node)) is not None, node, "a device such as 'cpu' or 'cuda:0'")
        case Kind.NDARRAY:
            _expect(_text(node) in NUMPY_DTYPES, node, "a NumPy dtype such as '<f8'")
        case Kind.NUMPY_SCALAR:
            _expect(node.name in NUMPY_DTYPES, node, "a NumPy dtype such as '<f8'")
            _expect(len(node.data) == np.dtype(node.name).itemsize, node, f"the size of {node.name}")
            _expect(node.name != "|b1" or node.data in (b"\0", b"\1"), node, "0 or 1")


def _text(node: Node) -> str:
    try:
        return node.data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(_where(node), repr(node.data[:40]), "UTF-8 text") from None


def _expect(condition: bool, node: Node, expected: str) -> None:
    if not condition:
        raise FormatError(_where(node), f"{node.name[:16]} {node.data[:40]!r}".strip(), expected)
