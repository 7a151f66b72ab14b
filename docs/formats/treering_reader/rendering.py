"""A checkpoint as JSON: what ``reader.py --json`` prints and ``expected.json`` of the vectors holds.

Floats are the hex digits of their IEEE 754 bytes, big-endian, so that every NaN has one form; integers are texts, so
that no JSON parser rounds them.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from typing import Any

from treering_reader.checkpoint import Checkpoint, Loaded
from treering_reader.digests import shown
from treering_reader.layout import size_of
from treering_reader.schema import Statement
from treering_reader.signatures import KINDS
from treering_reader.state import Device, Dtype, NumpyScalar, Reference, Size

REPEATED_AT_MOST = 64 << 20  # bytes of a view that repeats its elements, so that a few stored ones can be terabytes


def rendered(checkpoint: Checkpoint) -> dict[str, Any]:
    """All that was read, tensors and attachments by the SHA-256 of their bytes."""
    return {
        "root": checkpoint.root,
        "seal": checkpoint.seal,
        "weights_root": checkpoint.weights_root,
        "state_root": checkpoint.state_root,
        "attachments_root": checkpoint.attachments_root,
        "metadata_root": checkpoint.metadata_root,
        "tensors": {name: tensor(loaded) for name, loaded in checkpoint.tensors.items()},
        "state": value(checkpoint.state),
        "attachments": {path: hashlib.sha256(content).hexdigest() for path, content in checkpoint.attachments.items()},
        "metadata": checkpoint.metadata,
        "signatures": len(checkpoint.signatures),
        **({"accepted": statement(checkpoint.accepted)} if checkpoint.accepted else {}),
    }


def statement(said: Statement) -> dict[str, Any]:
    """A statement, its fields named as in the schema."""
    return {
        "kind": KINDS[said.kind],
        "subject": shown(said.subject),
        "line": said.line,
        "issued_at_ms": said.issued_at_ms,
        "not_after_ms": said.not_after_ms,
        "key_id": shown(said.key_id),
    }


def tensor(loaded: Loaded) -> dict[str, Any]:
    record = loaded.record
    countable = size_of(record) <= max(len(loaded.storage), REPEATED_AT_MOST)
    cut = [[list(piece.offsets), list(piece.sizes), piece.storage] for piece in loaded.pieces]
    return {
        "dtype": record.dtype,
        "shape": list(record.shape),
        "strides": list(record.strides),
        "offset": record.offset,
        "storage": record.storage,
        **({"pieces": cut} if cut else {}),
        "sha256": hashlib.sha256(loaded.content).hexdigest() if countable else None,
    }


def value(state: Any) -> Any:
    """One value of a state; what JSON has no form for is an object with the kind as its only or first key."""
    match state:
        case None | bool() | str():
            return state
        case int():
            return {"int": str(state)}
        case float():
            return {"float": _bits(state)}
        case complex():
            return {"complex": [_bits(state.real), _bits(state.imag)]}
        case bytes():
            return {"bytes": state.hex()}
        case Dtype():
            return {"dtype": state.name}
        case Device():
            return {"device": state.text}
        case NumpyScalar():
            return {"numpy": state.dtype, "bytes": state.data.hex()}
        case Reference():
            return _reference(state)
        case Size():
            return {"size": [str(item) for item in state]}
        case tuple():
            return {"tuple": [value(item) for item in state]}
        case list():
            return [value(item) for item in state]
    return _mapping(state)


def _mapping(state: dict[Any, Any]) -> dict[str, Any]:
    pairs = [[value(key), value(item)] for key, item in state.items()]
    if isinstance(state, OrderedDict):
        return {"ordered_dict": pairs, "metadata": value(getattr(state, "_metadata", None))}
    return {"counter" if isinstance(state, Counter) else "dict": pairs}


def _reference(state: Reference) -> dict[str, Any]:
    if state.kind == "ndarray":
        return {"ndarray": state.name, "dtype": state.dtype}
    return {state.kind: state.name, "requires_grad": state.requires_grad}


def _bits(number: float) -> str:
    return struct.pack(">d", number).hex()
