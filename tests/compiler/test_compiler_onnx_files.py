"""Two files for any ONNX Runtime: whole whenever they are looked at, and rewritten only where weights changed."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import compiler
from compiler.__main__ import main
from compiler.backends import onnx_files as files
from compiler.constants import offsets

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def net(seed: int) -> nn.Module:
    """Two constants of a folded norm, two of a head."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 10)).eval()


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def program() -> compiler.Program:
    return compiler.compile(net(0), (X,), backend="onnx")


@pytest.fixture
def graph(program: compiler.Program) -> bytes:
    (target,) = program.targets
    return program.packages[target.path]


@pytest.fixture
def memory(program: compiler.Program) -> dict[str, Tensor]:
    memory = program.allocate()
    program.evaluate(net(4).state_dict(), memory)
    return memory


@pytest.fixture
def folder(program: compiler.Program, graph: bytes, memory: dict[str, Tensor], tmp_path: Path) -> Path:
    files.write_files(graph, program.constants, memory, tmp_path / "web")
    return tmp_path / "web"


def answer(folder: Path, x: Tensor) -> Tensor:
    """What ONNX Runtime makes of the files alone."""
    session = onnxruntime.InferenceSession(folder / files.GRAPH_FILE, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["output"], {"input": x.numpy()})[0])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_files_answer_without_this_project(
    program: compiler.Program, memory: dict[str, Tensor], folder: Path
) -> None:
    assert names_in(folder) == ["constants.bin", "model.onnx"]
    assert names_in(folder.parent) == ["web"]
    assert torch.equal(answer(folder, X), program.load_runner(memory)(X)[0])


def test_new_weights_rewrite_the_ranges_that_changed_and_no_other_byte(
    program: compiler.Program, memory: dict[str, Tensor], folder: Path
) -> None:
    before = (folder / "constants.bin").read_bytes()
    state = net(4).state_dict()
    state["1.weight"] = state["1.weight"] * 2

    names = program.evaluate(state, memory, changed=["1.weight"])
    written = files.update_files(program.constants, memory, folder, names=names)

    after = (folder / "constants.bin").read_bytes()
    starts = offsets(program.constants)
    sizes = {constant.name: constant.size_bytes for constant in program.constants}
    within = {at for name in written.constants for at in range(starts[name], starts[name] + sizes[name])}
    differing = {at for at in range(len(before)) if before[at] != after[at]}
    assert len(before) == len(after) == program.arena_bytes
    assert written.constants == names == ("0.weight.folded", "0.weight.folded_bias")
    assert written.size_bytes == len(within)
    assert differing
    assert differing <= within
    assert torch.equal(answer(folder, X), program.bind(state)(X)[0])


def test_the_same_weights_again_touch_nothing(
    program: compiler.Program, graph: bytes, memory: dict[str, Tensor], folder: Path
) -> None:
    before = (folder / "constants.bin").stat()

    written = files.write_files(graph, program.constants, memory, folder)

    after = (folder / "constants.bin").stat()
    assert written == files.Written(constants=(), size_bytes=0)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("call", ["copy_file_range", "fsync"])
def test_an_update_that_is_cut_off_leaves_the_old_weights_and_the_next_one_succeeds(
    program: compiler.Program,
    graph: bytes,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    before, second = answer(folder, X), program.allocate()
    program.evaluate(net(5).state_dict(), second)

    def cut(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, call, cut)
        with pytest.raises(KeyboardInterrupt):
            files.update_files(program.constants, second, folder)
    between = answer(folder, X)
    files.write_files(graph, program.constants, second, folder)

    assert torch.equal(before, between)
    assert torch.equal(answer(folder, X), program.load_runner(second)(X)[0])
    assert names_in(folder) == ["constants.bin", "model.onnx"]


def test_who_has_the_file_open_keeps_the_old_weights(
    program: compiler.Program, memory: dict[str, Tensor], folder: Path
) -> None:
    before = (folder / "constants.bin").read_bytes()
    with (folder / "constants.bin").open("rb") as opened:
        program.evaluate(net(5).state_dict(), memory)

        files.update_files(program.constants, memory, folder)

        assert opened.read() == before
    assert (folder / "constants.bin").read_bytes() != before


def test_a_folder_that_is_cut_off_does_not_appear(program: compiler.Program, graph: bytes, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        files.write_files(graph, program.constants, {}, tmp_path / "web")

    assert names_in(tmp_path) == []


def test_a_folder_of_something_else_is_refused_and_left_alone(
    program: compiler.Program, graph: bytes, memory: dict[str, Tensor], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(compiler.OtherFilesError, match=r"notes' holds no graph, expected an empty folder or"):
        files.write_files(graph, program.constants, memory, tmp_path / "notes")
    with pytest.raises(compiler.OtherFilesError, match="holds the graph of another program"):
        files.write_files(graph + b"\x00", program.constants, memory, folder)

    (folder / "constants.bin").write_bytes(b"short")
    with pytest.raises(compiler.OtherFilesError, match="holds 5 bytes of constants, not"):
        files.update_files(program.constants, memory, folder)

    assert names_in(tmp_path / "notes") == ["a.txt"]
    assert (folder / "constants.bin").read_bytes() == b"short"


def test_the_command_writes_the_files_and_then_only_what_another_checkpoint_changes(
    program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = str(program.save(tmp_path / "program")), str(tmp_path / "web")
    state = net(1).state_dict()
    save_file(state, tmp_path / "one.safetensors")
    state["3.bias"] = state["3.bias"] + 1
    (tmp_path / "two").mkdir()
    for part, chosen in enumerate((("3.bias",), tuple(state.keys() - {"3.bias"}))):
        save_file({name: state[name] for name in chosen}, tmp_path / "two" / f"weights-{part}.safetensors")

    assert main(["onnx", saved, str(tmp_path / "one.safetensors"), out]) == 0
    assert main(["onnx", saved, str(tmp_path / "two"), out, "--json"]) == 0

    said, second = capsys.readouterr().out.splitlines()
    count, size = len(program.constants), program.arena_bytes
    assert said.startswith(f"{out}: wrote {count} of {count} constants, ")
    assert said.endswith(f" of {size:,} bytes")
    assert json.loads(second) == {"out": out, "constants": ["3.bias"], "size_bytes": 40}
    assert torch.equal(answer(Path(out), X), program.bind(state)(X)[0])


def test_the_command_names_what_is_missing(
    program: compiler.Program, eager_program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = str(eager_program.save(tmp_path / "without"))
    saved, out = str(program.save(tmp_path / "program")), str(tmp_path / "web")
    (tmp_path / "bad.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)

    codes = [
        main(["onnx", without, saved, out]),
        main(["onnx", saved, str(tmp_path / "absent"), out]),
        main(["onnx", saved, str(tmp_path / "bad.safetensors"), out]),
        main(["onnx", saved, str(tmp_path / "cut.safetensors"), out]),
    ]

    faults = capsys.readouterr().err.splitlines()
    assert codes == [1, 1, 1, 1]
    assert "holds no graph for it. Compile the model with backend='onnx'." in faults[0]
    assert "absent': found no safetensors file, expected weights in safetensors" in faults[1]
    assert "MissingTensorError: checkpoint: 8 of the tensors that the program reads are missing" in faults[2]
    assert "cut.safetensors': found a damaged file" in faults[3]
    assert not Path(out).exists()
