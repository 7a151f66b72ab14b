"""A program is recalled before anything is traced, and never for another model than the one it was made from."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import passes, pipeline, recall
from compiler.backends.eager import EagerBackend
from compiler.verification.perturbation import perturb

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.first(x)) * self.scale
        return result


def compiled(net: nn.Module, folder: Path, *, x: Tensor = X, most: int = 8, **more: Any) -> compiler.Program:
    dynamic = {"x": {0: compiler.Dim(name="rows", max=most)}}
    return compiler.compile(net.eval(), (x,), dynamic=dynamic, backend="eager", cache=folder, **more)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of models as they are traced."""
    names: list[str] = []
    capture = pipeline.capture

    def noted(model: nn.Module, *arguments: Any, **named: Any) -> Any:
        names.append(type(model).__name__)
        return capture(model, *arguments, **named)

    monkeypatch.setattr(pipeline, "capture", noted)
    return names


def test_the_same_model_is_traced_once_and_gives_the_same_program_to_any_weights(
    tmp_path: Path, traced: list[str]
) -> None:
    first = compiled(Net(), tmp_path)
    entries = sorted(tmp_path.iterdir())
    other = perturb(Net().eval())

    programs = [compiled(net, tmp_path) for net in (Net(), other)]

    assert traced == ["Net"]
    assert programs == [first, first]
    assert first.report.cache == "compiled: no program of this key was kept"
    assert {program.report.cache for program in programs} == {"recalled, and compared with these weights"}
    assert sorted(tmp_path.iterdir()) == entries
    assert torch.allclose(programs[1].bind(other.state_dict())(X)[0], other(X), rtol=1e-5, atol=1e-5)


ASKED: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "a dimension's range": lambda folder, patch: compiled(Net(), folder, most=9),
    "a target": lambda folder, patch: compiled(Net(), folder, targets=("cuda",)),
    "an input's dtype": lambda folder, patch: compiled(Net().double(), folder, x=X.double()),
    "what a backend builds with": lambda folder, patch: (
        patch.setattr(EagerBackend, "build_key", lambda self, requirement: "another"),
        compiled(Net(), folder),
    ),
    "torch's version": lambda folder, patch: (patch.setattr(torch, "__version__", "2.99"), compiled(Net(), folder)),
    "the compiler's source": lambda folder, patch: (
        patch.setattr(recall, "_own_source", lambda: "another"),
        compiled(Net(), folder),
    ),
    "no dimension": lambda folder, patch: compiler.compile(Net().eval(), (X,), backend="eager", cache=folder),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the program of ``Net``."""
    folder = tmp_path_factory.mktemp("kept")
    compiled(Net(), folder)
    return folder


class _TracedError(Exception):
    """Capture was reached."""


@pytest.mark.parametrize("what", ASKED)
def test_a_call_that_asks_for_something_else_is_traced(what: str, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*arguments: Any, **named: Any) -> None:
        raise _TracedError

    monkeypatch.setattr(pipeline, "capture", reached)
    compiled(Net(), kept)  # is not

    with pytest.raises(_TracedError):
        ASKED[what](kept, monkeypatch)


def test_a_model_that_is_not_understood_is_traced_each_time_and_the_report_says_why(
    tmp_path: Path, traced: list[str]
) -> None:
    net = Net()
    net.first.register_forward_hook(lambda module, inputs, output: output * 2)

    programs = [compiled(net, tmp_path) for _ in range(2)]

    assert traced == ["Net", "Net"]
    assert "Net.first._forward_hooks: hooks" in programs[1].report.cache
    assert torch.allclose(programs[1].bind(net.state_dict())(X)[0], net(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", [lambda net: net, perturb])
def test_what_the_key_does_not_tell_shows_in_the_answers_and_is_traced(
    tmp_path: Path, traced: list[str], monkeypatch: pytest.MonkeyPatch, weights: Callable[[nn.Module], nn.Module]
) -> None:
    """A key that cannot tell two models apart stands for all that a fingerprint may miss."""
    monkeypatch.setattr(recall, "fingerprint", lambda *given: "the same for all")
    compiled(Net(), tmp_path)
    other = weights(Net(scale=0.75).eval())

    program, again = compiled(other, tmp_path), compiled(other, tmp_path)

    assert traced == ["Net", "Net"]
    assert "recalled' backend" in program.report.cache or "backend 'recalled'" in program.report.cache
    assert again == program
    assert torch.allclose(program.bind(other.state_dict())(X)[0], other(X), rtol=1e-5, atol=1e-5)


def test_a_damaged_entry_is_told_removed_and_made_anew(tmp_path: Path, traced: list[str]) -> None:
    first = compiled(Net(), tmp_path)
    (entry,) = tmp_path.glob("*.program")
    entry.write_bytes(entry.read_bytes()[:-1])

    second, third = compiled(Net(), tmp_path), compiled(Net(), tmp_path)

    assert traced == ["Net", "Net"]
    assert f"'{entry}' was damaged" in second.report.cache
    assert third.report.cache.startswith("recalled")
    assert first == second == third


def test_an_entry_that_is_whole_and_no_program_is_told_removed_and_made_anew(tmp_path: Path, traced: list[str]) -> None:
    compiled(Net(), tmp_path)
    (entry,) = tmp_path.glob("*.program")
    key = entry.name.partition("-")[0]
    entry.rename(tmp_path / f"{key}-{hashlib.sha256(b'x').hexdigest()}.program").write_bytes(b"x")

    second, third = compiled(Net(), tmp_path), compiled(Net(), tmp_path)

    assert traced == ["Net", "Net"]
    assert "invalid program" in second.report.cache
    assert third.report.cache.startswith("recalled")


def test_a_program_whose_package_is_gone_is_built_anew(
    tmp_path: Path, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EagerBackend, "build", lambda self, definition, requirement: b"package")
    monkeypatch.setattr(EagerBackend, "requirement", "any")
    monkeypatch.setattr(EagerBackend, "suffix", ".bin")
    first = compiled(Net(), tmp_path)
    assert compiled(Net(), tmp_path) == first
    (package,) = tmp_path.glob("*.package")
    package.unlink()

    second, third = compiled(Net(), tmp_path), compiled(Net(), tmp_path)

    assert traced == ["Net", "Net"]
    assert "found none in the cache" in second.report.cache
    assert third == second == first


def test_a_folder_that_cannot_be_written_keeps_nothing_and_the_report_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    program = compiled(Net(), tmp_path / "file" / "cache")

    assert "the program was not kept: " in program.report.cache
    assert program.report.figures


def test_another_compilation_of_the_same_meanwhile_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = pipeline.capture
    others: list[compiler.Program] = []

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(pipeline, "capture", capture)
        others.append(compiled(Net(), tmp_path))  # begins after the first has looked, and ends before it
        return capture(*arguments, **named)

    monkeypatch.setattr(pipeline, "capture", late)
    program = compiled(Net(), tmp_path)

    assert others == [program] == [compiled(Net(), tmp_path)]
    assert [path.suffix for path in tmp_path.iterdir()] == [".program"]


def test_passes_read_no_weights(tmp_path: Path) -> None:
    """Why weights are no part of a key: with any values capture and passes make the same graph."""
    net = Net().eval()
    zeros = Net().eval()
    with torch.no_grad():
        for tensor in zeros.state_dict().values():
            tensor.zero_()

    graphs = [passes.run_passes(pipeline.capture(each, (X,)))[0] for each in (net, perturb(net), zeros)]

    assert len({str(pipeline.lower(graph)) for graph in graphs}) == 1
