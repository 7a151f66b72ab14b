"""Bad conformance vectors whose manifest lies, sealed with a right checksum: the stable word of each, and the edit.

Where a lie would show in a payload header too, the headers are forged to fit, so that only the manifest's own rule is
left to refuse it.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import ckpt
from ckpt.format.state import Kind, encode_scalar
from ckpt.proto.checkpoint_pb2 import Manifest, Node
from tests.ckpt.vector_states import CHECKPOINT
from tests.hostile.edits import Edit, forge_files, node, put, rewrite_manifest, storage, tensor

Lie = tuple[str, str, Callable[[Path], object]]  # word, good vector, what is done to its copy
DIGEST = b"\7" * 32


def swap(items: object, first: int, second: int) -> None:
    """Exchange two messages of a repeated field."""
    one, two = items[first], items[second]  # type: ignore[index]
    kept = type(one)()
    kept.CopyFrom(one)
    one.CopyFrom(two)
    two.CopyFrom(kept)


def renumber(message: Manifest, first: int, second: int) -> None:
    """Two storages in each other's place of the list, and all that refers to them."""
    swap(message.storages, first, second)
    for item in message.tensors:
        item.storage = {first: second, second: first}.get(item.storage, item.storage)


def rename(message: Manifest, old: str, new: str) -> None:
    """Under its new name in both places."""
    tensor(message, old).name = new
    next(item for item in message.state if item.name == old).name = new


def nested(message: Manifest, levels: int) -> None:
    put(message, state=[Node(kind=Kind.LIST, count=1)] * levels, tensors=[], storages=[], files=[])
    message.state.add(kind=Kind.NONE)


def keyed(message: Manifest, *keys: Node) -> None:
    """A state that is one mapping from these keys to None."""
    put(message, state=[Node(kind=Kind.DICT, count=len(keys))], tensors=[], storages=[], files=[])
    for key in keys:
        message.state.extend([key, Node(kind=Kind.NONE)])


def size_of(message: Manifest, **fields: object) -> None:
    """Change the first element of the torch.Size."""
    put(message.state[list(message.state).index(node(message, Kind.SIZE)) + 1], **fields)


def place(message: Manifest, name: str, *, shift: int) -> None:
    storage(message, name).offset += shift


def exchange(message: Manifest, first: str, second: str) -> None:
    """Two storages that lie end to end, in the other order."""
    one, two = storage(message, first), storage(message, second)
    two.offset = one.offset
    one.offset += two.size


def pose(message: Manifest, name: str, kind: str) -> None:
    """The file of a tensor's storage under the name of the other kind."""
    file = message.files[storage(message, name).file]
    file.name = f"{kind}-{file.name.partition('-')[2]}"


def empty_that_shares(message: Manifest) -> None:
    put(tensor(message, "empty"), storage=tensor(message, "ints").storage)
    del message.storages[[item.size for item in message.storages].index(0)]


NOT_A_NUMBER = Node(kind=Kind.FLOAT, data=bytes(6) + b"\xf8\x7f")

TABLES: dict[str, tuple[str, Edit]] = {
    "version-2": ("unknown-version", lambda m: put(m, format_version=2)),
    "version-0": ("unknown-version", lambda m: put(m, format_version=0)),
    "a-storage-beyond-2-48": ("size-beyond-limit", lambda m: put(storage(m, "ints"), size=2**48 + 1)),
    "a-storage-without-crc": ("chunk-count", lambda m: put(storage(m, "ints"), crc32=b"")),
    "a-crc-too-many": ("chunk-count", lambda m: put(s := storage(m, "ints"), crc32=s.crc32 + b"\1\0\0\0")),
    "half-a-sha256": ("chunk-count", lambda m: put(storage(m, "ints"), sha256=DIGEST[:16])),
    "a-chunk-of-an-empty-storage": ("chunk-count", lambda m: put(storage(m, "empty"), crc32=bytes(4), sha256=DIGEST)),
    "storages-out-of-order": ("storage-order", lambda m: renumber(m, 0, 1)),
    "a-storage-nobody-uses": ("storage-order", lambda m: m.storages.add()),
    "a-storage-beyond-its-tensors": ("storage-bounds", lambda m: put(tensor(m, "ints"), shape=[3])),
    "a-storage-before-its-tensors": ("storage-bounds", lambda m: put(tensor(m, "one"), offset=4, shape=[7])),
    "an-empty-tensor-that-shares": ("storage-bounds", empty_that_shares),
    "a-name-twice": ("duplicate-name", lambda m: rename(m, "one", "two")),
    "a-name-of-5000-bytes": ("name-too-long", lambda m: rename(m, "one", "n" * 5000)),
    "an-unknown-dtype": ("unknown-dtype", lambda m: put(tensor(m, "ints"), dtype="float999")),
    "65-axes": ("tensor-shape", lambda m: put(tensor(m, "ints"), shape=[1] * 64 + [4], strides=[4] * 64 + [1])),
    "sizes-that-overflow": ("tensor-shape", lambda m: put(tensor(m, "row"), shape=[2**40] * 2, strides=[2**40, 1])),
    "empty-sizes-that-overflow": ("tensor-shape", lambda m: put(tensor(m, "empty"), shape=[0, 2**62], strides=[1, 1])),
    "a-view-beyond-counting": ("tensor-shape", lambda m: put(tensor(m, "row"), shape=[2**60, 2], strides=[0, 1])),
    "a-stride-too-few": ("tensor-strides", lambda m: put(tensor(m, "floats"), strides=[1])),
    "a-free-stride": ("tensor-strides", lambda m: put(tensor(m, "row"), strides=[7, 1])),
    "strides-of-an-empty-tensor": ("tensor-strides", lambda m: put(tensor(m, "empty"), strides=[9, 9])),
    "an-offset-between-elements": ("tensor-offset", lambda m: put(tensor(m, "two"), offset=18)),
    "a-storage-that-is-not-there": ("reference", lambda m: put(tensor(m, "ints"), storage=999)),
    "elements-beyond-the-storage": ("storage-bounds", lambda m: put(tensor(m, "ints"), shape=[5])),
    "a-stride-beyond-the-storage": ("storage-bounds", lambda m: put(tensor(m, "odd"), strides=[2**63])),
    "a-wider-dtype": ("storage-bounds", lambda m: put(tensor(m, "ints"), dtype="complex128")),
}

STATE: dict[str, tuple[str, Edit]] = {
    "no-node": ("state-shape", lambda m: put(m, state=[])),
    "a-node-too-many": ("state-shape", lambda m: m.state.add(kind=Kind.NONE)),
    "a-node-too-few": ("state-shape", lambda m: m.state.pop()),
    "a-count-of-2-63": ("state-shape", lambda m: nested(m, 0) or put(m.state[0], kind=Kind.LIST, count=2**63)),
    "no-kind": ("state-kind", lambda m: put(node(m, Kind.NONE), kind=0)),
    "kind-20": ("state-kind", lambda m: put(node(m, Kind.NONE), kind=20)),
    "a-negative-kind": ("state-kind", lambda m: put(node(m, Kind.NONE), kind=-1)),
    "a-list-as-a-key": ("state-kind", lambda m: keyed(m, Node(kind=Kind.LIST))),
    "a-complex-key": ("state-kind", lambda m: keyed(m, Node(kind=Kind.COMPLEX, data=bytes(16)))),
    "a-size-of-texts": ("state-kind", lambda m: size_of(m, kind=Kind.STR)),
    "64-levels-and-one": ("state-depth", lambda m: nested(m, 65)),
    "none-with-data": ("state-data", lambda m: put(node(m, Kind.NONE), data=b"x")),
    "a-scalar-with-a-count": ("state-data", lambda m: put(node(m, Kind.NONE), count=7)),
    "a-scalar-with-a-name": ("state-data", lambda m: put(node(m, Kind.INT), name="hidden")),
    "a-list-with-data": ("state-data", lambda m: put(node(m, Kind.LIST), data=b"hidden")),
    "a-list-with-a-gradient": ("state-data", lambda m: put(node(m, Kind.LIST), requires_grad=True)),
    "a-tensor-with-data": ("state-data", lambda m: put(node(m, Kind.TENSOR), data=b"hidden")),
    "an-array-with-a-gradient": ("state-data", lambda m: put(node(m, Kind.NDARRAY), requires_grad=True)),
    "a-bool-of-2": ("state-data", lambda m: put(node(m, Kind.BOOL), data=b"\2")),
    "an-int-of-no-bytes": ("state-data", lambda m: put(node(m, Kind.INT), data=b"")),
    "an-int-in-a-longer-form": ("state-data", lambda m: put(node(m, Kind.INT), data=b"\7\0")),
    "a-float-of-4-bytes": ("state-data", lambda m: put(node(m, Kind.FLOAT), data=bytes(4))),
    "a-complex-of-8-bytes": ("state-data", lambda m: put(node(m, Kind.COMPLEX), data=bytes(8))),
    "text-that-is-no-utf8": ("state-data", lambda m: put(node(m, Kind.STR), data=b"\xff\xfe")),
    "text-with-a-surrogate": ("state-data", lambda m: put(node(m, Kind.STR), data=b"\xed\xa0\x80")),
    "a-dtype-outside-the-table": ("unknown-dtype", lambda m: put(node(m, Kind.DTYPE), data=b"object")),
    "a-device-that-is-none": ("state-data", lambda m: put(node(m, Kind.DEVICE), data=b"Toaster 9")),
    "a-device-number-01": ("state-data", lambda m: put(node(m, Kind.DEVICE), data=b"cuda:01")),
    "an-object-scalar": ("state-data", lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|O8", data=bytes(8))),
    "a-scalar-of-3-bytes": ("state-data", lambda m: put(node(m, Kind.NUMPY_SCALAR), data=bytes(3))),
    "a-numpy-bool-of-2": ("state-data", lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|b1", data=b"\2")),
    "a-big-endian-array": ("state-data", lambda m: put(node(m, Kind.NDARRAY), data=b">f4")),
    "an-array-of-another-dtype": ("state-data", lambda m: put(node(m, Kind.NDARRAY), data=b"<i4")),
    "a-size-beyond-64-bits": ("state-data", lambda m: size_of(m, data=b"\1" * 9)),
    "a-key-twice": ("duplicate-key", lambda m: keyed(m, *[Node(kind=Kind.STR, data=b"k")] * 2)),
    "keys-1-and-true": (
        "duplicate-key",
        lambda m: keyed(m, Node(kind=Kind.INT, data=b"\1"), Node(kind=Kind.BOOL, data=b"\1")),
    ),
    "one-nan-twice-as-a-key": ("duplicate-key", lambda m: keyed(m, NOT_A_NUMBER, NOT_A_NUMBER)),
    "65-keys-of-one-hash": (
        "keys-alike",
        lambda m: keyed(m, *[Node(kind=Kind.INT, data=encode_scalar(Kind.INT, n * (2**61 - 1))) for n in range(65)]),
    ),
    "a-tensor-that-is-not-there": ("tensor-reference", lambda m: put(node(m, Kind.TENSOR), name="nowhere")),
    "a-tensor-referred-to-twice": ("tensor-reference", lambda m: put(node(m, Kind.TENSOR), name="two")),
    "a-tensor-nobody-refers-to": ("tensor-reference", lambda m: put(m, state=[Node(kind=Kind.NONE)])),
    "integers-with-a-gradient": (
        "requires-grad",
        lambda m: put(next(item for item in m.state if item.name == "ints"), requires_grad=True),
    ),
}

ENTRIES: dict[str, tuple[str, Edit]] = {
    "metadata-out-of-order": ("not-sorted", lambda m: swap(m.metadata, 0, 1)),
    "a-metadata-key-twice": ("not-sorted", lambda m: put(m.metadata[1], key="k")),
    "a-producer-key-twice": ("not-sorted", lambda m: m.producer.append(m.producer[0])),
    "attachments-out-of-order": ("not-sorted", lambda m: swap(m.attachments, 0, 1)),
    "an-attachment-twice": ("not-sorted", lambda m: put(m.attachments[1], path="docs/a.txt")),
    "an-attachment-upwards": ("attachment-path", lambda m: put(m.attachments[0], path="../evil")),
    "an-absolute-attachment": ("attachment-path", lambda m: put(m.attachments[0], path="/etc/passwd")),
    "an-attachment-not-normalised": ("attachment-path", lambda m: put(m.attachments[0], path="docs//a.txt")),
    "an-attachment-with-a-dot": ("attachment-path", lambda m: put(m.attachments[0], path="./a.txt")),
    "an-attachment-with-a-backslash": ("attachment-path", lambda m: put(m.attachments[0], path="docs\\a.txt")),
    "an-attachment-with-a-nul": ("attachment-path", lambda m: put(m.attachments[0], path="docs/a\0")),
    "an-attachment-without-a-path": ("attachment-path", lambda m: put(m.attachments[0], path="")),
    "an-attachment-of-5000-bytes": ("attachment-path", lambda m: put(m.attachments[0], path="a" * 5000)),
    "an-attachment-named-manifest": ("attachment-path", lambda m: put(m.attachments[0], path="manifest.pb/x")),
    "an-attachment-named-extra": ("attachment-path", lambda m: put(m.attachments[0], path="extra-1")),
    "an-attachment-inside-another": ("attachment-path", lambda m: put(m.attachments[1], path="docs/a.txt/x")),
    "an-attachment-without-digest": ("chunk-count", lambda m: put(m.attachments[0], sha256=b"")),
    "a-file-upwards": ("file-name", lambda m: put(m.files[0], name="../" + m.files[0].name)),
    "a-file-of-another-form": ("file-name", lambda m: put(m.files[0], name="weights.safetensors")),
    "a-file-twice": ("file-table", lambda m: put(m.files[1], name=m.files[0].name)),
    "no-index": ("file-table", lambda m: m.files.pop()),
    "a-file-of-nothing": (
        "file-table",
        lambda m: m.files.add(
            name="extra-00009-00000000.safetensors", header_sha256=DIGEST, size=4096, header_size=4096
        ),
    ),
    "a-smaller-file": ("file-table", lambda m: put(m.files[0], size=m.files[0].size - 1)),
    "half-a-header-digest": ("file-table", lambda m: put(m.files[0], header_sha256=DIGEST[:9])),
    "a-file-that-is-not-there": ("reference", lambda m: put(storage(m, "ints"), file=9)),
    "a-hole-between-storages": ("placement", lambda m: place(m, "ints", shift=8)),
    "a-storage-over-another": ("placement", lambda m: put(storage(m, "ints"), offset=storage(m, "floats").offset)),
    "a-storage-in-the-header": ("placement", lambda m: put(storage(m, "ints"), offset=8)),
    "storages-in-another-order": ("placement", lambda m: exchange(m, "floats", "row")),
    "extra-that-pose-as-weights": ("placement", lambda m: pose(m, "odd", "weights")),
    "weights-that-pose-as-extra": ("file-table", lambda m: pose(m, "ints", "extra")),
}


def lies() -> dict[str, Lie]:
    """Every lie above as a change of the vector ``mixed``."""
    forged = {name: (word, "mixed", _forged(edit)) for name, (word, edit) in (TABLES | STATE).items()}
    return forged | {name: (word, "mixed", sealed(edit)) for name, (word, edit) in ENTRIES.items()}


def sealed(edit: Edit) -> Callable[[Path], object]:
    """The manifest of a vector's checkpoint, edited."""
    return lambda folder: rewrite_manifest(folder / CHECKPOINT, edit)


def _forged(edit: Edit) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        rewrite_manifest(folder / CHECKPOINT, edit)
        with contextlib.suppress(ckpt.FormatError, LookupError, OSError):  # of what no header can be derived from
            forge_files(folder / CHECKPOINT)

    return apply
