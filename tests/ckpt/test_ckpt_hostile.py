"""Whoever edits a manifest and seals it again with a right checksum is refused, whatever he lies about."""

import contextlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt
from ckpt.proto.checkpoint_pb2 import Manifest, Node
from ckpt.state import Kind
from tests.ckpt.hostile import (
    Edit,
    copied,
    forge_files,
    mutate,
    node,
    put,
    rewrite_manifest,
    save_victim,
    storage,
    tensor,
)

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


def shrink(message: Manifest, name: str, size: int) -> None:
    storage(message, name).size = size


def place_in(message: Manifest, name: str, prefix: str) -> None:
    """Move a tensor's storage to another kind of file by renaming the file."""
    file = message.files[storage(message, name).file]
    file.name = prefix + file.name.partition("-")[2]


TENSORS: dict[str, Edit] = {
    "a name that stands twice": lambda m: rename(m, "one", "two"),
    "an endless name": lambda m: rename(m, "one", "n" * 5000),
    "an unknown dtype": lambda m: put(tensor(m, "ints"), dtype="float999"),
    "a dtype of another size": lambda m: put(tensor(m, "ints"), dtype="complex128"),
    "a smaller dtype than its storage": lambda m: put(tensor(m, "ints"), dtype="int32"),
    "a size of 2^63": lambda m: put(tensor(m, "ints"), shape=[HUGE]),
    "sizes whose product overflows": lambda m: put(tensor(m, "floats"), shape=[2**33, 2**33], strides=[2**33, 1]),
    "sizes that overflow without a byte": lambda m: put(tensor(m, "empty"), shape=[0, HUGE], strides=[HUGE, 1]),
    "empty sizes beyond torch's": lambda m: put(tensor(m, "empty"), shape=[0, 2**62], strides=[2**62, 1]),
    "a view repeated beyond counting": lambda m: put(tensor(m, "grad"), shape=[2**40, 2**40, 2], strides=[0, 0, 1]),
    "a stride of 2^63": lambda m: put(tensor(m, "odd"), strides=[HUGE]),
    "a stride that overflows": lambda m: put(tensor(m, "floats"), strides=[2**62, 1]),
    "strides that are not normal": lambda m: put(tensor(m, "empty"), strides=[9, 9]),
    "fewer strides than sizes": lambda m: put(tensor(m, "floats"), strides=[1]),
    "too many dimensions": lambda m: put(tensor(m, "floats"), shape=[1] * 65, strides=[1] * 65),
    "an offset of 2^63": lambda m: put(tensor(m, "ints"), offset=HUGE),
    "an offset beyond its storage": lambda m: put(tensor(m, "ints"), offset=8),
    "an offset between elements": lambda m: put(tensor(m, "two"), offset=18),
    "an offset of an empty tensor": lambda m: put(tensor(m, "empty"), offset=4),
    "a storage that is not there": lambda m: put(tensor(m, "ints"), storage=999),
    "two tensors that exchanged storages": lambda m: put(tensor(m, "ints"), storage=tensor(m, "grad").storage),
    "bytes before its first tensor": lambda m: put(tensor(m, "one"), offset=16, shape=[5]),
    "bytes after its last tensor": lambda m: put(tensor(m, "two"), shape=[5]),
    "a tensor that no state refers to": lambda m: m.tensors.add(name="z", dtype="int64", shape=[4], strides=[1]),
}

STORAGES: dict[str, Edit] = {
    "a size of 2^63": lambda m: shrink(m, "ints", HUGE),
    "a smaller size": lambda m: shrink(m, "ints", 24),
    "a larger size": lambda m: shrink(m, "ints", 40),
    "no CRC": lambda m: put(storage(m, "ints"), crc32=[]),
    "too many CRCs": lambda m: storage(m, "ints").crc32.append(1),
    "half a SHA-256": lambda m: put(storage(m, "ints"), sha256=b"\0" * 16),
    "another SHA-256": lambda m: put(storage(m, "ints"), sha256=DIGEST),
    "a chunk of an empty one": lambda m: put(storage(m, "empty"), crc32=[0], sha256=DIGEST),
    "another order": lambda m: swap(m.storages, 0, 1),
    "one that no tensor views": lambda m: m.storages.add(),
    "a file that is not there": lambda m: put(storage(m, "ints"), file=9),
    "a place in the index": lambda m: put(storage(m, "ints"), file=len(m.files) - 1),
    "a place of 2^63": lambda m: put(storage(m, "ints"), offset=HUGE),
    "a place over another": lambda m: put(storage(m, "ints"), offset=storage(m, "last").offset),
    "a place inside the header": lambda m: put(storage(m, "ints"), offset=8),
}

FILES: dict[str, Edit] = {
    "a path": lambda m: put(m.files[0], name="weights-00001/../../x"),
    "a foreign name": lambda m: put(m.files[0], name="passwd"),
    "a name with a NUL": lambda m: put(m.files[0], name=m.files[0].name + "\0"),
    "a name that goes on": lambda m: put(m.files[-1], name=m.files[-1].name + ".exe"),
    "a name twice": lambda m: put(m.files[1], name=m.files[0].name),
    "no name": lambda m: put(m.files[0], name=""),
    "a smaller size": lambda m: put(m.files[0], size=m.files[0].size - 1),
    "a size of 2^63": lambda m: put(m.files[0], size=HUGE),
    "a longer header": lambda m: put(m.files[0], header_size=m.files[0].header_size + 1),
    "a header of 2^63": lambda m: put(m.files[0], header_size=HUGE),
    "another header": lambda m: put(m.files[0], header_sha256=DIGEST),
    "half a digest": lambda m: put(m.files[0], header_sha256=DIGEST[:9]),
    "one file less": lambda m: m.files.pop(),
    "a file of nothing": lambda m: m.files.add(name="extra-00009-00000000.safetensors", header_sha256=DIGEST),
    "weights that pose as extra": lambda m: place_in(m, "ints", "extra-"),
    "extra that pose as weights": lambda m: place_in(m, "odd", "weights-"),
}

STATE: dict[str, Edit] = {
    "no node": lambda m: put(m, state=[]),
    "a node too many": lambda m: m.state.add(kind=Kind.NONE),
    "a node too few": lambda m: m.state.pop(),
    "an unknown kind": lambda m: put(m.state[0], kind=99),
    "no kind": lambda m: put(m.state[0], kind=0),
    "a count of 2^63": lambda m: put(node(m, Kind.LIST), count=HUGE),
    "a count of zero": lambda m: put(node(m, Kind.LIST), count=0),
    "70 levels": lambda m: nested(m, 70),
    "100,000 levels": lambda m: nested(m, 100_000),
    "a tensor that is not there": lambda m: put(node(m, Kind.TENSOR), name="nowhere"),
    "a tensor twice": lambda m: put(node(m, Kind.TENSOR), name="two"),
    "a tensor as a key": lambda m: put(m.state[1], kind=Kind.TENSOR, name="two"),
    "a list as a key": lambda m: put(m.state[1], kind=Kind.LIST),
    "a key twice": lambda m: put(m.state[3], data=m.state[1].data),
    "keys that Python holds equal": lambda m: put(node(m, Kind.STR, -2), kind=Kind.FLOAT, data=b"\0" * 6 + b"\xf0\x3f"),
    "a text that is no UTF-8": lambda m: put(node(m, Kind.STR), data=b"\xff\xfe"),
    "a bool that is neither": lambda m: put(node(m, Kind.BOOL), data=b"\2"),
    "an int of no bytes": lambda m: put(node(m, Kind.INT), data=b""),
    "an int in a longer form": lambda m: put(node(m, Kind.INT), data=b"\7\0"),
    "a float of 4 bytes": lambda m: put(node(m, Kind.FLOAT), data=b"\0" * 4),
    "a complex of 8 bytes": lambda m: put(node(m, Kind.COMPLEX), data=b"\0" * 8),
    "None with data": lambda m: put(node(m, Kind.NONE), data=b"x"),
    "an unknown dtype": lambda m: put(node(m, Kind.DTYPE), data=b"object"),
    "a device that is none": lambda m: put(node(m, Kind.DEVICE), data=b"Toaster 9"),
    "a device that is no UTF-8": lambda m: put(node(m, Kind.DEVICE), data=b"\xff"),
    "a device in another form": lambda m: put(node(m, Kind.DEVICE), data=b"cuda:01"),
    "an object as a NumPy scalar": lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|O8", data=b"\0" * 8),
    "a NumPy scalar of 3 bytes": lambda m: put(node(m, Kind.NUMPY_SCALAR), name="<f3", data=b"\0" * 3),
    "a NumPy dtype in other digits": lambda m: put(node(m, Kind.NUMPY_SCALAR), name="<f٤"),
    "a NumPy dtype in another form": lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|f4"),
    "a NumPy scalar of another size": lambda m: put(node(m, Kind.NUMPY_SCALAR), data=b"\0" * 8),
    "a NumPy bool that is neither": lambda m: put(node(m, Kind.NUMPY_SCALAR), name="|b1", data=b"\2"),
    "an array of objects": lambda m: put(node(m, Kind.NDARRAY), data=b"|O4"),
    "an array of 3-byte floats": lambda m: put(node(m, Kind.NDARRAY), data=b"<f3"),
    "an array of another dtype": lambda m: put(node(m, Kind.NDARRAY), data=b"<i4"),
    "an array dtype that is no UTF-8": lambda m: put(node(m, Kind.NDARRAY), data=b"\xff"),
    "an array with a gradient": lambda m: put(node(m, Kind.NDARRAY), requires_grad=True),
    "integers with a gradient": lambda m: put(
        next(item for item in m.state if item.name == "ints"), requires_grad=True
    ),
    "a list with a gradient": lambda m: put(node(m, Kind.LIST), requires_grad=True),
    "a list with data": lambda m: put(node(m, Kind.LIST), data=b"hidden"),
    "a list with a name": lambda m: put(node(m, Kind.LIST), name="hidden"),
    "a scalar with a count": lambda m: put(node(m, Kind.NONE), count=7),
    "a scalar with a name": lambda m: put(node(m, Kind.INT), name="hidden"),
    "a tensor with data": lambda m: put(node(m, Kind.TENSOR), data=b"hidden"),
    "a size of texts": lambda m: put(m.state[list(m.state).index(node(m, Kind.SIZE)) + 1], kind=Kind.STR),
    "a size beyond 64 bits": lambda m: put(m.state[list(m.state).index(node(m, Kind.SIZE)) + 1], data=b"\1" * 9),
}

ATTACHMENTS: dict[str, Edit] = {
    "a path upwards": lambda m: put(m.attachments[0], path="../evil"),
    "an absolute path": lambda m: put(m.attachments[0], path="/etc/passwd"),
    "a path in another form": lambda m: put(m.attachments[0], path="docs//a.txt"),
    "a backslash": lambda m: put(m.attachments[0], path="docs\\a.txt"),
    "a NUL": lambda m: put(m.attachments[0], path="docs/a\0"),
    "no path": lambda m: put(m.attachments[0], path=""),
    "a reserved name": lambda m: put(m.attachments[0], path="manifest.pb"),
    "a payload's name": lambda m: put(m.attachments[0], path="extra-1"),
    "a path twice": lambda m: put(m.attachments[1], path=m.attachments[0].path),
    "a path inside a file": lambda m: put(m.attachments[1], path=m.attachments[0].path + "/x"),
    "another order": lambda m: swap(m.attachments, 0, 1),
    "a size of 2^63": lambda m: put(m.attachments[0], size=HUGE),
    "no digest": lambda m: put(m.attachments[0], sha256=b""),
}

ENTRIES: dict[str, Edit] = {
    "an unknown version": lambda m: put(m, format_version=2),
    "no version": lambda m: put(m, format_version=0),
    "metadata out of order": lambda m: swap(m.metadata, 0, 1),
    "a metadata key twice": lambda m: put(m.metadata[1], key=m.metadata[0].key),
    "a producer key twice": lambda m: m.producer.append(m.producer[0]),
}


def cases() -> list[object]:
    tables = {
        "tensor": TENSORS,
        "storage": STORAGES,
        "file": FILES,
        "state": STATE,
        "attachment": ATTACHMENTS,
        "manifest": ENTRIES,
    }
    return [pytest.param(edit, id=f"{kind}: {lie}") for kind, table in tables.items() for lie, edit in table.items()]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    save_victim(folder)
    return folder / "victim"


@pytest.mark.parametrize("lie", cases())
def test_a_lie_with_a_right_checksum_is_refused(lie: Edit, victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lie)

    with pytest.raises((ckpt.FormatError, ckpt.IntegrityError)):
        ckpt.load(folder, verify="sha256")
    assert not ckpt.verify(folder).ok


def test_the_victim_itself_is_sound(victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lambda message: None)

    assert ckpt.verify(folder, root=ckpt.read_manifest(victim).root).ok
    ckpt.load(folder)


@pytest.mark.parametrize("lie", [pytest.param(edit, id=lie) for lie, edit in (TENSORS | STATE).items()])
def test_forged_headers_do_not_help_a_lie(lie: Edit, victim: Path, tmp_path: Path) -> None:
    """The files are made to fit the manifest, so that only its own rules are left to refuse it."""
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lie)
    with contextlib.suppress(ckpt.FormatError, IndexError, KeyError):  # of what no header can be derived from
        forge_files(folder)

    with pytest.raises(ckpt.FormatError):
        ckpt.load(folder)


@pytest.mark.parametrize(("name", "kind"), [("ints", "extra"), ("odd", "weights")])
def test_a_storage_in_the_other_kind_of_file_is_refused(name: str, kind: str, victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")

    def edit(message: Manifest) -> None:
        old = message.files[storage(message, name).file].name
        place_in(message, name, f"{kind}-")
        (folder / old).rename(folder / message.files[storage(message, name).file].name)

    rewrite_manifest(folder, edit)
    forge_files(folder)

    with pytest.raises(ckpt.FormatError):
        ckpt.load(folder)


def test_a_device_that_this_torch_lacks_is_named_when_it_is_loaded(victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lambda message: put(node(message, Kind.DEVICE), data=b"toaster:1"))

    assert ckpt.verify(folder).ok
    with pytest.raises(ckpt.VersionError, match=r"'toaster:1'.*a torch that has it"):
        ckpt.load(folder)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 3), forged=st.booleans())
def test_any_mutation_is_refused_or_loads(
    seed: int, changes: int, forged: bool, victim: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copied(victim, tmp_path_factory.mktemp("mutated") / "c")
    choose = Random(seed)

    def edit(message: Manifest) -> None:
        for _ in range(changes):
            mutate(message, choose)

    rewrite_manifest(folder, edit)
    if forged:
        with contextlib.suppress(ckpt.FormatError, IndexError, KeyError, FileNotFoundError):
            forge_files(folder)

    try:
        ckpt.load(folder, verify="sha256")
    except ckpt.CheckpointError:
        return
    attached = {item.path for item in ckpt.read_manifest(folder).attachments}
    assert {fault.facts["file"] for fault in ckpt.verify(folder).faults} <= attached
