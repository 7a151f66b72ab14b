"""Safetensors files as others write them, true or not: a header of any text before any bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ckpt.format.digests import sha256
from ckpt.format.wire import MANIFEST_MAGIC
from ckpt.proto import checkpoint_pb2
from tests.hostile.edits import rewrite

Header = dict[str, Any]


def entry(dtype: str, shape: list[int], start: int, end: int) -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def file_bytes(header: Header | str | bytes, payload: bytes) -> bytes:
    text = header if isinstance(header, str | bytes) else json.dumps(header)
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(8, "little") + data + payload


def header_of(path: Path) -> tuple[Header, bytes]:
    """The parsed header and the payload of a file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewrite_header(path: Path, manifest: Path, edit: Callable[[Header], object]) -> None:
    """Edit the header of an adopted file, and its manifest's file table to fit the new one."""
    header, payload = header_of(path)
    before = path.stat().st_size
    edit(header)
    data = file_bytes(header, payload)
    path.write_bytes(data)
    length = len(data) - len(payload)

    def adjust(message: checkpoint_pb2.Manifest) -> None:
        number, record = next((n, file) for n, file in enumerate(message.files) if file.name == path.name)
        record.size, record.header_size, record.header_sha256 = len(data), length, sha256(data[:length])
        for storage in message.storages:
            if storage.file == number:
                storage.offset += len(data) - before

    rewrite(manifest, checkpoint_pb2.Manifest(), MANIFEST_MAGIC, adjust)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Some tensors as a model has them: several sizes, two dtypes, a scalar and an empty one."""
    make = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(700, 512, generator=make),
        "layer.0.bias": torch.randn(33, generator=make),
        "layer.0.weight": torch.randn(33, 17, generator=make).bfloat16(),
        "scale": torch.tensor(0.5),
        "steps": torch.arange(3, dtype=torch.int8),
        "unused": torch.empty(0, 4),
    }
