"""What ``ckpt`` answers about a checkpoint, in the JSON of the conformance vectors.

The bytes and the state are those of what ``ckpt.load`` gives back, named by their paths in it, so that nothing is
copied from the manifest that the load does not use.
"""

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ckpt
from ckpt.disk.folder import reading
from ckpt.format.digests import text
from ckpt.format.dtypes import bits
from ckpt.format.manifest import Manifest
from ckpt.format.records import normal_strides
from ckpt.format.state import tensor_name
from ckpt.signatures.statements import StatementKind, milliseconds, signatures_in
from tests.ckpt.vectors import KEYS

Answer = dict[str, Any]


def answer(path: Path, *, values: Collection[str] = ()) -> Answer:
    """Digests, tensors, state, attachments, metadata and number of signatures; of some tensors the values too."""
    manifest = ckpt.read_manifest(path)
    state = ckpt.load(path, verify="sha256")
    ckpt.load(path, verify="crc32", mmap=False)
    with ckpt.open(path) as checkpoint:
        attached = {item.path: _sha256(checkpoint.attachment(item.path).read_bytes()) for item in manifest.attachments}
    loaded: dict[str, torch.Tensor] = {}
    stated = _value(state, (), loaded)
    signatures = reading(path, lambda opened: signatures_in(opened, StatementKind.CHECKPOINT), expected="manifest.pb")
    tensors = {name: _tensor(manifest, name, loaded[name]) for name in manifest.by_name}
    for name in values:
        tensors[name]["values"] = loaded[name].tolist()
    return {
        "root": manifest.root,
        "seal": manifest.seal,
        "weights_root": text(manifest.weights_digest),
        "state_root": text(manifest.state_digest),
        "attachments_root": text(manifest.attachments_digest),
        "metadata_root": text(manifest.metadata_digest),
        "tensors": tensors,
        "state": stated,
        "attachments": attached,
        "metadata": dict(manifest.metadata),
        "signatures": len(signatures.own),
    }


def said(statement: ckpt.Statement) -> Answer:
    """A statement, its fields named as in the schema."""
    return {
        "kind": statement.kind.name.lower(),
        "subject": statement.subject,
        "line": statement.line,
        "issued_at_ms": milliseconds(statement.issued_at),
        "not_after_ms": milliseconds(statement.not_after) if statement.not_after else 0,
        "key_id": statement.key_id,
    }


def trust_of(vector: Answer) -> ckpt.Trust | None:
    """Whom a vector says to trust; None where it says nothing."""
    if "trust" not in vector:
        return None
    named, at = vector["trust"], datetime.fromisoformat(vector["trust"]["at"])
    return ckpt.Trust(keys=[KEYS / f"{key}.pub.pem" for key in named["keys"]], line=named["line"], now=lambda: at)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _tensor(manifest: Manifest, name: str, loaded: torch.Tensor) -> Answer:
    record = manifest.by_name[name]
    pieces = [
        [list(piece.offsets), list(piece.sizes), piece.storage]
        for piece in manifest.pieces
        if manifest.tensors[piece.tensor] is record
    ]
    return {
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "shape": list(loaded.shape),
        "strides": list(normal_strides(loaded.shape, loaded.stride())),
        "offset": record.offset,
        "storage": record.storage,
        **({"pieces": pieces} if pieces else {}),
        "sha256": _sha256(row_major(loaded)),
    }


def row_major(tensor: torch.Tensor) -> bytes:
    """The elements' bytes, the last axis running fastest."""
    plain = bits(tensor.detach())
    dense = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def _value(state: Any, path: tuple[str, ...], loaded: dict[str, torch.Tensor]) -> Any:
    match state:
        case None | bool() | str():
            return state
        case np.generic():
            return {"numpy": state.dtype.str, "bytes": state.tobytes().hex()}
        case int():
            return {"int": str(state)}
        case float():
            return {"float": _bits(state)}
        case complex():
            return {"complex": [_bits(state.real), _bits(state.imag)]}
        case bytes():
            return {"bytes": state.hex()}
        case torch.dtype():
            return {"dtype": str(state).removeprefix("torch.")}
        case torch.device():
            return {"device": str(state)}
        case torch.Tensor() | np.ndarray():
            return _reference(state, tensor_name(path), loaded)
        case torch.Size():
            return {"size": [str(item) for item in state]}
        case list() | tuple():
            items = [_value(item, (*path, str(index)), loaded) for index, item in enumerate(state)]
            return items if isinstance(state, list) else {"tuple": items}
    return _mapping(state, path, loaded)


def _mapping(state: Any, path: tuple[str, ...], loaded: dict[str, torch.Tensor]) -> Answer:
    pairs = [[_value(key, (), loaded), _value(item, (*path, str(key)), loaded)] for key, item in state.items()]
    if isinstance(state, OrderedDict):
        metadata = _value(getattr(state, "_metadata", None), (*path, "_metadata"), loaded)
        return {"ordered_dict": pairs, "metadata": metadata}
    return {"counter" if isinstance(state, Counter) else "dict": pairs}


def _reference(value: Any, name: str, loaded: dict[str, torch.Tensor]) -> Answer:
    if isinstance(value, np.ndarray):
        loaded[name] = torch.from_numpy(value)
        return {"ndarray": name, "dtype": value.dtype.str}
    loaded[name] = value
    kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
    return {kind: name, "requires_grad": value.requires_grad}


def _bits(number: float) -> str:
    return struct.pack(">d", number).hex()
