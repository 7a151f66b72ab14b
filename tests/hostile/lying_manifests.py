"""Manifests that are edited and sealed again: their checksum is right, and only their rules are left to refuse them."""

import ckpt
from ckpt.format.state import Kind, encode_scalar
from ckpt.proto.checkpoint_pb2 import Manifest, Node
from tests.hostile.edits import node, put, storage, tensor
from tests.hostile.lies import Lie, Look

HUGE = 2**63
DIGEST = b"\7" * 32


def swap(items: object, first: int, second: int) -> None:
    """Exchange two messages of a repeated field."""
    one, two = items[first], items[second]  # type: ignore[index]
    kept = type(one)()
    kept.CopyFrom(one)
    one.CopyFrom(two)
    two.CopyFrom(kept)


def rename(message: Manifest, old: str, new: str) -> None:
    """Under its new name in both places."""
    tensor(message, old).name = new
    next(item for item in message.state if item.name == old).name = new


def nested(message: Manifest, levels: int) -> None:
    put(message, state=[Node(kind=Kind.LIST, count=1)] * levels, tensors=[], storages=[], files=[])
    message.state.add(kind=Kind.NONE)


def alike(message: Manifest, count: int) -> None:
    """A dict of numbers that Python hashes to 0: a table of them is searched from end to end for each."""
    put(message, state=[Node(kind=Kind.DICT, count=count)], tensors=[], storages=[], files=[])
    for number in range(count):
        message.state.add(kind=Kind.INT, data=encode_scalar(Kind.INT, number * (2**61 - 1)))
        message.state.add(kind=Kind.NONE)


def shrink(message: Manifest, name: str, size: int) -> None:
    storage(message, name).size = size


def place_in(message: Manifest, name: str, prefix: str) -> None:
    """Move a tensor's storage to another kind of file by renaming the file."""
    file = message.files[storage(message, name).file]
    file.name = prefix + file.name.partition("-")[2]


TENSORS: dict[str, Lie] = {
    "a name that stands twice": Lie(lambda m: rename(m, "one", "two"), "expected unique names up to 4 KiB"),
    "an endless name": Lie(lambda m: rename(m, "one", "n" * 5000), "expected unique names up to 4 KiB"),
    "an unknown dtype": Lie(lambda m: put(tensor(m, "ints"), dtype="float999"), "found dtype 'float999'"),
    "a dtype of another size": Lie(
        lambda m: put(tensor(m, "ints"), dtype="complex128"),
        "found bytes up to 64, expected within its storage of 32 bytes",
    ),
    "a smaller dtype than its storage": Lie(lambda m: put(tensor(m, "ints"), dtype="int32"), "expected those alone"),
    "a size of 2^63": Lie(
        lambda m: put(tensor(m, "ints"), shape=[HUGE]), "expected at most 4611686018427387904 bytes, were none repeated"
    ),
    "sizes whose product overflows": Lie(
        lambda m: put(tensor(m, "floats"), shape=[2**33, 2**33], strides=[2**33, 1]),
        "expected at most 4611686018427387904 bytes, were none repeated",
    ),
    "sizes that overflow without a byte": Lie(
        lambda m: put(tensor(m, "empty"), shape=[0, HUGE], strides=[HUGE, 1]),
        "expected at most 4611686018427387904 bytes, were none repeated",
    ),
    "empty sizes beyond torch's": Lie(
        lambda m: put(tensor(m, "empty"), shape=[0, 2**62], strides=[2**62, 1]),
        "expected at most 4611686018427387904 bytes, were none repeated",
    ),
    "a view repeated beyond counting": Lie(
        lambda m: put(tensor(m, "grad"), shape=[2**40, 2**40, 2], strides=[0, 0, 1]),
        "expected at most 4611686018427387904 bytes, were none repeated",
    ),
    "a stride of 2^63": Lie(lambda m: put(tensor(m, "odd"), strides=[HUGE]), "expected within its storage of 36 bytes"),
    "a stride that overflows": Lie(
        lambda m: put(tensor(m, "floats"), strides=[2**62, 1]), "expected within its storage of 24 bytes"
    ),
    "strides that are not normal": Lie(
        lambda m: put(tensor(m, "empty"), strides=[9, 9]), "found strides (9, 9), expected normal strides"
    ),
    "fewer strides than sizes": Lie(
        lambda m: put(tensor(m, "floats"), strides=[1]),
        "found 2 sizes, 1 strides, expected as many of each, at most 64",
    ),
    "too many dimensions": Lie(
        lambda m: put(tensor(m, "floats"), shape=[1] * 65, strides=[1] * 65),
        "found 65 sizes, 65 strides, expected as many of each, at most 64",
    ),
    "an offset of 2^63": Lie(lambda m: put(tensor(m, "ints"), offset=HUGE), "expected within its storage of 32 bytes"),
    "an offset beyond its storage": Lie(
        lambda m: put(tensor(m, "ints"), offset=8), "found bytes up to 40, expected within its storage of 32 bytes"
    ),
    "an offset between elements": Lie(
        lambda m: put(tensor(m, "two"), offset=18), "found offset 18, expected a multiple of 4"
    ),
    "an offset of an empty tensor": Lie(
        lambda m: put(tensor(m, "empty"), offset=4), "found bytes up to 4, expected within its storage of 0 bytes"
    ),
    "a storage that is not there": Lie(
        lambda m: put(tensor(m, "ints"), storage=999), "found storage 999, expected less than 8"
    ),
    "two tensors that exchanged storages": Lie(
        lambda m: put(tensor(m, "ints"), storage=tensor(m, "grad").storage),
        "found bytes up to 32, expected within its storage of 8 bytes",
    ),
    "bytes before its first tensor": Lie(lambda m: put(tensor(m, "one"), offset=16, shape=[5]), "expected those alone"),
    "bytes after its last tensor": Lie(lambda m: put(tensor(m, "two"), shape=[5]), "expected those alone"),
    "a tensor that no state refers to": Lie(
        lambda m: m.tensors.add(name="z", dtype="int64", shape=[4], strides=[1], storage=tensor(m, "ints").storage),
        "references to other tensors than the table's",
    ),
}

WRAPPING: dict[str, Lie] = {
    "a size that wraps round to the right one": Lie(
        lambda m: put(tensor(m, "ints"), shape=[2**61 + 4]), "bytes, were none repeated"
    ),
    "sizes that wrap round to the right ones": Lie(
        lambda m: put(tensor(m, "floats"), shape=[2**32 + 2, 2**32 + 3], strides=[2**32 + 3, 1]),
        "bytes, were none repeated",
    ),
    "a stride that wraps round to the right one": Lie(
        lambda m: put(tensor(m, "floats"), strides=[2**62 + 3, 1]), "within its storage of 24 bytes"
    ),
    "an offset that wraps round to the right one": Lie(
        lambda m: put(tensor(m, "two"), offset=2**64 - 16), "within its storage of 48 bytes"
    ),
    "a size of a storage that wraps round": Lie(
        lambda m: shrink(m, "ints", 2**64 - 32), "expected 17592186044416 chunks of each"
    ),
    "a size of a file that wraps round": Lie(
        lambda m: put(m.files[0], size=2**64 - 1, header_size=2**64 - 557), "of file 0, expected storages end to end"
    ),
}

STORAGES: dict[str, Lie] = {
    "a size of 2^63": Lie(lambda m: shrink(m, "ints", HUGE), "found 1 CRCs and 32 bytes of SHA-256"),
    "a smaller size": Lie(
        lambda m: shrink(m, "ints", 24), "found bytes up to 32, expected within its storage of 24 bytes"
    ),
    "a larger size": Lie(lambda m: shrink(m, "ints", 40), "expected those alone"),
    "no CRC": Lie(lambda m: put(storage(m, "ints"), crc32=b""), "expected 1 chunks of each for 32 bytes"),
    "too many CRCs": Lie(
        lambda m: put(storage(m, "ints"), crc32=bytes(8)), "found 2 CRCs and 32 bytes of SHA-256, expected 1 chunks"
    ),
    "half a CRC": Lie(
        lambda m: put(storage(m, "ints"), crc32=bytes(6)), "found 1.5 CRCs and 32 bytes of SHA-256, expected 1 chunks"
    ),
    "half a SHA-256": Lie(
        lambda m: put(storage(m, "ints"), sha256=b"\0" * 16), "expected 1 chunks of each for 32 bytes"
    ),
    "another SHA-256": Lie(
        lambda m: put(storage(m, "ints"), sha256=DIGEST),
        "chunk 0 of the storage of 'ints'",
        ckpt.CorruptChunkError,
        found_by=Look.SHA256,
    ),
    "a chunk of an empty one": Lie(
        lambda m: put(storage(m, "empty"), crc32=bytes(4), sha256=DIGEST), "expected 0 chunks of each for 0 bytes"
    ),
    "another order": Lie(
        lambda m: swap(m.storages, 0, 1), "found bytes up to 12, expected within its storage of 0 bytes"
    ),
    "one that no tensor views": Lie(
        lambda m: m.storages.add(), "expected the order of first use by the tensors sorted by name"
    ),
    "a file that is not there": Lie(
        lambda m: put(storage(m, "ints"), file=9), "found byte 4096 of file 9, expected storages end to end"
    ),
    "a place in the index": Lie(
        lambda m: put(storage(m, "ints"), file=len(m.files) - 1),
        "found byte 4096 of file 2, expected storages end to end",
    ),
    "a place of 2^63": Lie(lambda m: put(storage(m, "ints"), offset=HUGE), "expected storages end to end"),
    "a place over another": Lie(
        lambda m: put(storage(m, "ints"), offset=storage(m, "last").offset),
        "found byte 4128 of file 0, expected storages end to end",
    ),
    "a place inside the header": Lie(
        lambda m: put(storage(m, "ints"), offset=8), "found byte 8 of file 0, expected storages end to end"
    ),
}

FILES: dict[str, Lie] = {
    "a path": Lie(
        lambda m: put(m.files[0], name="weights-00001/../../x"),
        "expected weights-…, extra-… or model.safetensors.index.json",
    ),
    "a foreign name": Lie(
        lambda m: put(m.files[0], name="passwd"), "expected weights-…, extra-… or model.safetensors.index.json"
    ),
    "a name with a NUL": Lie(
        lambda m: put(m.files[0], name=m.files[0].name + "\0"),
        "expected weights-…, extra-… or model.safetensors.index.json",
    ),
    "a name that goes on": Lie(
        lambda m: put(m.files[-1], name=m.files[-1].name + ".exe"),
        "expected weights-…, extra-… or model.safetensors.index.json",
    ),
    "a name twice": Lie(lambda m: put(m.files[1], name=m.files[0].name), "found a name twice, expected each name once"),
    "no name": Lie(lambda m: put(m.files[0], name=""), "expected weights-…, extra-… or model.safetensors.index.json"),
    "a smaller size": Lie(lambda m: put(m.files[0], size=m.files[0].size - 1), "found 4651 bytes, expected 4652 bytes"),
    "a size of 2^63": Lie(lambda m: put(m.files[0], size=HUGE), "found 9223372036854775808 bytes, expected 4652 bytes"),
    "a longer header": Lie(
        lambda m: put(m.files[0], header_size=m.files[0].header_size + 1),
        "found byte 4096 of file 0, expected storages end to end",
    ),
    "a header of 2^63": Lie(
        lambda m: put(m.files[0], header_size=HUGE), "found byte 4096 of file 0, expected storages end to end"
    ),
    "another header": Lie(
        lambda m: put(m.files[0], header_sha256=DIGEST),
        "the header of 'weights-",
        ckpt.CorruptFileError,
        found_by=Look.HEADER,
    ),
    "half a digest": Lie(
        lambda m: put(m.files[0], header_sha256=DIGEST[:9]), "found a SHA-256 of 9 bytes, expected 32"
    ),
    "one file less": Lie(lambda m: m.files.pop(), "expected model.safetensors.index.json beside weights- files"),
    "a file of nothing": Lie(
        lambda m: m.files.add(name="extra-00009-00000000.safetensors", header_sha256=DIGEST),
        "expected storages in payload",
    ),
    "weights that pose as extra": Lie(
        lambda m: place_in(m, "ints", "extra-"), "expected model.safetensors.index.json beside weights- files"
    ),
    "extra that pose as weights": Lie(lambda m: place_in(m, "odd", "weights-"), "expected one in extra-…"),
}

STATE: dict[str, Lie] = {
    "no node": Lie(lambda m: put(m, state=[]), "found 0 nodes for 9 tensors"),
    "a node too many": Lie(lambda m: m.state.add(kind=Kind.NONE), "expected exactly one state"),
    "a node too few": Lie(lambda m: m.state.pop(), "expected one state, 64 levels at most"),
    "an unknown kind": Lie(lambda m: put(m.state[0], kind=99), "found kind 99, expected 1 … 19"),
    "no kind": Lie(lambda m: put(m.state[0], kind=0), "found kind 0, expected 1 … 19"),
    "a count of 2^63": Lie(lambda m: put(node(m, Kind.LIST), count=HUGE), "expected one state, 64 levels at most"),
    "pairs of 2^63": Lie(lambda m: put(m.state[0], count=HUGE), "expected a scalar key for each value"),
    "more lists than there are": Lie(
        lambda m: put(m, state=[Node(kind=Kind.LIST, count=10**6), *[Node(kind=Kind.LIST)] * 1000]),
        "expected one state, 64 levels at most",
    ),
    "metadata of metadata without end": Lie(
        lambda m: put(m, state=[Node(kind=Kind.ORDERED_DICT)] * 1000, tensors=[], storages=[], files=[]),
        "expected one state, 64 levels at most",
    ),
    "keys that all hash alike": Lie(lambda m: alike(m, 2000), "keys that hash alike"),
    "a count of zero": Lie(lambda m: put(node(m, Kind.LIST), count=0), "expected a scalar key for each value"),
    "70 levels": Lie(lambda m: nested(m, 70), "expected one state, 64 levels at most"),
    "3,000 levels": Lie(lambda m: nested(m, 3000), "expected one state, 64 levels at most"),
    "a tensor that is not there": Lie(
        lambda m: put(node(m, Kind.TENSOR), name="nowhere"), "expected each tensor exactly once"
    ),
    "a tensor twice": Lie(lambda m: put(node(m, Kind.TENSOR), name="two"), "expected each tensor exactly once"),
    "a tensor as a key": Lie(
        lambda m: put(m.state[1], kind=Kind.TENSOR, name="two"), "expected a scalar key for each value"
    ),
    "a list as a key": Lie(lambda m: put(m.state[1], kind=Kind.LIST), "expected a scalar key for each value"),
    "a key twice": Lie(lambda m: put(m.state[3], data=m.state[1].data), "expected each key once"),
    "keys that Python holds equal": Lie(
        lambda m: put(node(m, Kind.STR, -2), kind=Kind.FLOAT, data=b"\0" * 6 + b"\xf0\x3f"), "expected each key once"
    ),
    "a text that is no UTF-8": Lie(
        lambda m: put(node(m, Kind.STR), data=b"\xff\xfe"), "found b'\\xff\\xfe', expected UTF-8 text"
    ),
    "a bool that is neither": Lie(
        lambda m: put(node(m, Kind.BOOL), data=b"\2"), "found b'\\x02', expected the shortest encoding"
    ),
    "an int of no bytes": Lie(lambda m: put(node(m, Kind.INT), data=b""), "found b'', expected the shortest encoding"),
    "an int in a longer form": Lie(
        lambda m: put(node(m, Kind.INT), data=b"\7\0"), "found b'\\x07\\x00', expected the shortest encoding"
    ),
    "a float of 4 bytes": Lie(lambda m: put(node(m, Kind.FLOAT), data=b"\0" * 4), "found 4 bytes, expected 8"),
    "a complex of 8 bytes": Lie(lambda m: put(node(m, Kind.COMPLEX), data=b"\0" * 8), "found 8 bytes, expected 16"),
    "None with data": Lie(lambda m: put(node(m, Kind.NONE), data=b"x"), "found 1 bytes, expected 0"),
    "an unknown dtype": Lie(
        lambda m: put(node(m, Kind.DTYPE), data=b"object"), "found b'object', expected a dtype of the table"
    ),
    "a device that is none": Lie(
        lambda m: put(node(m, Kind.DEVICE), data=b"Toaster 9"),
        "found b'Toaster 9', expected a device such as 'cpu' or 'cuda:0'",
    ),
    "a device that is no UTF-8": Lie(
        lambda m: put(node(m, Kind.DEVICE), data=b"\xff"), "found b'\\xff', expected UTF-8 text"
    ),
    "a device in another form": Lie(
        lambda m: put(node(m, Kind.DEVICE), data=b"cuda:01"),
        "found b'cuda:01', expected a device such as 'cpu' or 'cuda:0'",
    ),
    "an object as a NumPy scalar": Lie(
        lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|O8", data=b"\0" * 8), "expected a NumPy dtype such as '<f8'"
    ),
    "a NumPy scalar of 3 bytes": Lie(
        lambda m: put(node(m, Kind.NUMPY_SCALAR), name="<f3", data=b"\0" * 3),
        "found <f3 b'\\x00\\x00\\x00', expected a NumPy dtype such as '<f8'",
    ),
    "a NumPy dtype in other digits": Lie(
        lambda m: put(node(m, Kind.NUMPY_SCALAR), name="<f٤"),
        "found <f٤ b'\\x00\\x00\\x00@', expected a NumPy dtype such as '<f8'",
    ),
    "a NumPy dtype in another form": Lie(
        lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|f4"),
        "found |f4 b'\\x00\\x00\\x00@', expected a NumPy dtype such as '<f8'",
    ),
    "a NumPy scalar of another size": Lie(
        lambda m: put(node(m, Kind.NUMPY_SCALAR), data=b"\0" * 8), "expected the size of <f4"
    ),
    "a NumPy bool that is neither": Lie(
        lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|b1", data=b"\2"), "found |b1 b'\\x02', expected 0 or 1"
    ),
    "an array of objects": Lie(
        lambda m: put(node(m, Kind.NDARRAY), data=b"|O4"), "found array b'|O4', expected a NumPy dtype such as '<f8'"
    ),
    "an array of 3-byte floats": Lie(
        lambda m: put(node(m, Kind.NDARRAY), data=b"<f3"), "found array b'<f3', expected a NumPy dtype such as '<f8'"
    ),
    "an array of another dtype": Lie(
        lambda m: put(node(m, Kind.NDARRAY), data=b"<i4"), "expected the dtype of its tensor, float32"
    ),
    "an array dtype that is no UTF-8": Lie(
        lambda m: put(node(m, Kind.NDARRAY), data=b"\xff"), "found b'\\xff', expected UTF-8 text"
    ),
    "an array with a gradient": Lie(
        lambda m: put(node(m, Kind.NDARRAY), requires_grad=True),
        "found a field that holds True, expected nothing there",
    ),
    "integers with a gradient": Lie(
        lambda m: put(next(item for item in m.state if item.name == "ints"), requires_grad=True),
        "expected gradients of floating-point tensors only",
    ),
    "a list with a gradient": Lie(
        lambda m: put(node(m, Kind.LIST), requires_grad=True), "found a field that holds True, expected nothing there"
    ),
    "a list with data": Lie(
        lambda m: put(node(m, Kind.LIST), data=b"hidden"), "found a field that holds b'hidden', expected nothing there"
    ),
    "a list with a name": Lie(
        lambda m: put(node(m, Kind.LIST), name="hidden"), "found a field that holds 'hidden', expected nothing there"
    ),
    "a scalar with a count": Lie(
        lambda m: put(node(m, Kind.NONE), count=7), "found a field that holds 7, expected nothing there"
    ),
    "a scalar with a name": Lie(
        lambda m: put(node(m, Kind.INT), name="hidden"), "found a field that holds 'hidden', expected nothing there"
    ),
    "a tensor with data": Lie(
        lambda m: put(node(m, Kind.TENSOR), data=b"hidden"),
        "found a field that holds b'hidden', expected nothing there",
    ),
    "a size of texts": Lie(
        lambda m: put(m.state[list(m.state).index(node(m, Kind.SIZE)) + 1], kind=Kind.STR),
        "found a STR in it, expected integers of 64 bits",
    ),
    "a size beyond 64 bits": Lie(
        lambda m: put(m.state[list(m.state).index(node(m, Kind.SIZE)) + 1], data=b"\1" * 9),
        "found a INT in it, expected integers of 64 bits",
    ),
}


def deep(message: Manifest) -> None:
    """Thirty of the longest paths: whoever builds every parent of each takes a second."""
    del message.attachments[:]
    message.attachments.add(path="a/" * 1000 + "b")
    for number in range(30):
        message.attachments.add(path="a/" * 1000 + f"b/{number:04}/" + "c/" * 1000 + "d")


ATTACHMENTS: dict[str, Lie] = {
    "a path upwards": Lie(
        lambda m: put(m.attachments[0], path="../evil"), "expected a relative, normalised POSIX path"
    ),
    "an absolute path": Lie(
        lambda m: put(m.attachments[0], path="/etc/passwd"), "expected a relative, normalised POSIX path"
    ),
    "a path in another form": Lie(
        lambda m: put(m.attachments[0], path="docs//a.txt"), "expected a relative, normalised POSIX path"
    ),
    "a backslash": Lie(
        lambda m: put(m.attachments[0], path="docs\\a.txt"), "expected a relative, normalised POSIX path"
    ),
    "a NUL": Lie(lambda m: put(m.attachments[0], path="docs/a\0"), "expected a relative, normalised POSIX path"),
    "no path": Lie(lambda m: put(m.attachments[0], path=""), "expected a relative, normalised POSIX path"),
    "a path that ends in a slash": Lie(
        lambda m: put(m.attachments[0], path="docs/"), "expected a relative, normalised POSIX path"
    ),
    "a path through the folder itself": Lie(
        lambda m: put(m.attachments[0], path="docs/./a.txt"), "expected a relative, normalised POSIX path"
    ),
    "an endless path": Lie(
        lambda m: put(m.attachments[0], path="a" * 4097), "expected a relative, normalised POSIX path"
    ),
    "a path inside a file, two thousand folders deep": Lie(deep, "expected a folder there"),
    "a reserved name": Lie(
        lambda m: put(m.attachments[0], path="manifest.pb"),
        "found a name that the format uses itself, expected another name",
    ),
    "a payload's name": Lie(
        lambda m: put(m.attachments[0], path="extra-1"),
        "found a name that the format uses itself, expected another name",
    ),
    "a path twice": Lie(
        lambda m: put(m.attachments[1], path=m.attachments[0].path), "found a name twice, expected each name once"
    ),
    "a path inside a file": Lie(
        lambda m: put(m.attachments[1], path=m.attachments[0].path + "/x"),
        "found a file at 'docs/a.txt', expected a folder there",
    ),
    "another order": Lie(lambda m: swap(m.attachments, 0, 1), "expected each once, sorted by UTF-8 bytes"),
    "a size of 2^63": Lie(lambda m: put(m.attachments[0], size=HUGE), "found 1 CRCs and 32 bytes of SHA-256"),
    "no digest": Lie(lambda m: put(m.attachments[0], sha256=b""), "expected 1 chunks of each for 15 bytes"),
}

ENTRIES: dict[str, Lie] = {
    "an unknown version": Lie(lambda m: put(m, format_version=2), "found 2, expected 1", ckpt.VersionError),
    "no version": Lie(lambda m: put(m, format_version=0), "found 0, expected 1", ckpt.VersionError),
    "metadata out of order": Lie(
        lambda m: swap(m.metadata, 0, 1), "found keys out of order or twice, expected each key once, sorted"
    ),
    "a metadata key twice": Lie(
        lambda m: put(m.metadata[1], key=m.metadata[0].key),
        "found keys out of order or twice, expected each key once, sorted",
    ),
    "a producer key twice": Lie(
        lambda m: m.producer.append(m.producer[0]), "found keys out of order or twice, expected each key once, sorted"
    ),
}


MANIFESTS = {
    "tensor": TENSORS | WRAPPING,
    "storage": STORAGES,
    "file": FILES,
    "state": STATE,
    "attachment": ATTACHMENTS,
    "manifest": ENTRIES,
}
MESSAGES = ("storages", "tensors", "state", "files", "attachments", "metadata", "producer")
