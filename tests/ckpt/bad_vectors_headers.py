"""Bad conformance vectors of adopted files: headers that break a rule, or say something else than the manifest.

The manifest states the SHA-256 and the length of what lies there, so that the header itself is all there is to refuse.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckpt.format.digests import sha256
from ckpt.format.wire import MANIFEST_MAGIC
from ckpt.proto import checkpoint_pb2
from tests.ckpt.bad_vectors_manifests import Lie
from tests.ckpt.safetensors_files import Header, header_of
from tests.ckpt.vector_states import CHECKPOINT, INDEX, LONE
from tests.hostile.edits import Edit, put, rewrite, rewrite_manifest

NUMBERS: dict[str, Any] = {"-1": -1, "a-fraction": 0.5, "2-63": 2**63, "a-text": "0", "true": True, "null": None}


def restated(file: Path, manifest: Path, header: bytes) -> None:
    """Another header in the place of the one that lies there; the manifest is adjusted to its length."""
    before = file.read_bytes()
    length = 8 + int.from_bytes(before[:8], "little")
    data = len(header).to_bytes(8, "little") + header
    file.write_bytes(data + before[length:])

    def adjust(message: checkpoint_pb2.Manifest) -> None:
        number, record = next((n, item) for n, item in enumerate(message.files) if item.name == file.name)
        grown = len(data) - length
        put(record, size=record.size + grown, header_size=len(data), header_sha256=sha256(data))
        for item in message.storages:
            item.offset += grown if item.file == number else 0

    rewrite(manifest, checkpoint_pb2.Manifest(), MANIFEST_MAGIC, adjust)


def text(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Other text of the header of the file that was adopted alone."""

    def apply(folder: Path) -> None:
        file = folder / LONE
        header, _ = header_of(file)
        restated(file, file.with_name(f"{file.name}.manifest.pb"), change(json.dumps(header).encode()))

    return apply


def parsed(edit: Callable[[Header], object]) -> Callable[[Path], object]:
    def change(header: bytes) -> bytes:
        found = json.loads(header)
        edit(found)
        return json.dumps(found).encode()

    return text(change)


def number(value: object) -> Callable[[Path], object]:
    return parsed(lambda header: header["b"]["data_offsets"].__setitem__(0, value))


def entry(name: str, **fields: object) -> Callable[[Path], object]:
    return parsed(lambda header: header[name].update(fields))


def exchanged(header: Header, first: str, second: str) -> None:
    header[first], header[second] = header[second], header[first]


def alone(edit: Edit) -> Callable[[Path], object]:
    """An edit of the manifest beside the file that was adopted alone."""
    return lambda folder: rewrite(folder / f"{LONE}.manifest.pb", checkpoint_pb2.Manifest(), MANIFEST_MAGIC, edit)


def together(edit: Edit) -> Callable[[Path], object]:
    return lambda folder: rewrite_manifest(folder / CHECKPOINT, edit)


def index(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Another index of the adopted folder, hashed."""

    def apply(folder: Path) -> None:
        data = change((folder / CHECKPOINT / INDEX).read_bytes())
        (folder / CHECKPOINT / INDEX).write_bytes(data)
        digest = sha256(data)
        rewrite_manifest(
            folder / CHECKPOINT,
            lambda message: put(message.files[-1], size=len(data), header_size=len(data), header_sha256=digest),
        )

    return apply


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a-header-that-begins-with-a-space": text(lambda header: b" " + header),
    "a-header-that-is-no-object": text(lambda header: b"[" + header + b"]"),
    "a-header-with-text-after-it": text(lambda header: header + b"{}"),
    "a-header-with-a-nul-after-it": text(lambda header: header + b"\0"),
    "a-header-that-is-no-utf8": text(lambda header: header.replace(b"scalar", b"scal\xffr")),
    "a-header-cut-short": text(lambda header: header[:-1]),
    "a-header-of-no-bytes": text(lambda header: b""),
    "a-name-twice-in-a-header": text(lambda header: b'{"b": 1, ' + header[1:]),
    "a-field-twice-in-a-header": text(lambda header: header.replace(b'"dtype"', b'"dtype": "I8", "dtype"', 1)),
    "a-header-name-with-a-surrogate": text(lambda header: header.replace(b'"scalar"', b'"\\ud800"')),
    "another-field-in-a-header": entry("b", strides=[1]),
    "a-field-less-in-a-header": parsed(lambda header: header["b"].pop("shape")),
    "an-entry-that-is-no-object": parsed(lambda header: header.update(b=[])),
    "metadata-that-is-no-text": parsed(lambda header: header["__metadata__"].update(x=1)),
    "metadata-that-is-no-object": parsed(lambda header: header.update(__metadata__=[])),
    "a-dtype-that-nobody-knows": entry("b", dtype="F12"),
    "a-size-that-is-not-shape-by-element": entry("b", shape=[3]),
    "an-odd-row-of-half-bytes": entry("four", shape=[8, 1]),
    "a-scalar-of-half-bytes": entry("four", shape=[]),
    "65-axes-in-a-header": entry("scalar", shape=[1] * 65),
    "three-offsets": entry("b", data_offsets=[4, 12, 12]),
    "offsets-backwards": entry("b", data_offsets=[12, 4]),
    "a-hole-in-a-header": entry("scalar", data_offsets=[17, 18]),
    "an-overlap-in-a-header": entry("scalar", data_offsets=[15, 16]),
    "bytes-after-the-last-tensor": parsed(lambda header: header.pop("scalar")),
    "a-name-of-4097-bytes-in-a-header": parsed(lambda header: header.update({"n" * 4097: header.pop("scalar")})),
    **{f"an-offset-of-{name}": number(value) for name, value in NUMBERS.items()},
}

MISMATCH: dict[str, Callable[[Path], object]] = {
    "another-name-in-a-header": parsed(lambda header: header.update(other=header.pop("scalar"))),
    "another-dtype-in-a-header": entry("scalar", dtype="U8"),
    "another-shape-in-a-header": entry("b", shape=[1, 2]),
    "two-names-exchanged": parsed(lambda header: exchanged(header, "a", "four")),
}

LIES: dict[str, Lie] = {
    **{name: ("foreign-header", "adopted-file", act) for name, act in FOREIGN.items()},
    **{name: ("header-mismatch", "adopted-file", act) for name, act in MISMATCH.items()},
    "a-header-longer-than-stated": (
        "foreign-header",
        "adopted-file",
        lambda folder: _lengthen(folder / LONE),
    ),
    "an-index-with-another-file": (
        "header-mismatch",
        "adopted-folder",
        index(lambda data: data.replace(b'"z": "model-2', b'"z": "model-1')),
    ),
    "an-index-without-a-tensor": (
        "header-mismatch",
        "adopted-folder",
        index(lambda data: data.replace(b'"z": "model-2.safetensors", ', b"")),
    ),
    "an-index-with-a-name-twice": (
        "foreign-header",
        "adopted-folder",
        index(lambda data: data.replace(b'{"z"', b'{"z": "model-1.safetensors", "z"')),
    ),
    "an-index-without-a-weight-map": (
        "foreign-header",
        "adopted-folder",
        index(lambda data: data.replace(b"weight_map", b"weight_maps")),
    ),
    "an-adopted-file-upwards": (
        "file-name",
        "adopted-folder",
        together(lambda message: put(message.files[0], name="../model-1.safetensors")),
    ),
    "an-adopted-file-of-another-kind": (
        "file-name",
        "adopted-folder",
        together(lambda message: put(message.files[0], name="model-1.bin")),
    ),
    "adopted-files-without-an-index": ("file-table", "adopted-folder", together(lambda message: message.files.pop())),
    "an-adopted-file-beside-another": (
        "file-table",
        "adopted-file",
        alone(lambda message: put(message.files[0], name="other.safetensors")),
    ),
    "an-adopted-file-with-attachments": ("file-table", "adopted-file", alone(lambda m: m.attachments.add(path="x"))),
    "an-adopted-view": (
        "adopted-storage",
        "adopted-folder",
        together(lambda message: put(message.tensors[0], shape=[2], strides=[2])),
    ),
    "an-adopted-complex32": (
        "adopted-storage",
        "adopted-folder",
        together(lambda message: put(message.tensors[-1], dtype="complex32", shape=[2])),
    ),
    "an-adopted-storage-in-the-index": (
        "placement",
        "adopted-folder",
        together(lambda message: put(message.storages[0], file=2, offset=message.files[2].header_size)),
    ),
    "adopted-storages-with-a-hole": (
        "placement",
        "adopted-folder",
        together(lambda message: put(message.storages[-1], offset=message.storages[-1].offset + 1)),
    ),
}


def _lengthen(file: Path) -> None:
    """A header that says that it is a byte longer than it is, hashed."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    changed = (size + 1).to_bytes(8, "little") + data[8:]
    file.write_bytes(changed)
    rewrite(
        file.with_name(f"{file.name}.manifest.pb"),
        checkpoint_pb2.Manifest(),
        MANIFEST_MAGIC,
        lambda message: put(message.files[0], header_sha256=sha256(changed[: size + 8])),
    )


def lies() -> dict[str, Lie]:
    return LIES
