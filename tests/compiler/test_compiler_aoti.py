"""Native code whose constants stay outside: small ones really swap, arenas may be shared, and faults are clear."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.backends import aoti, instruction_sets

pytestmark = pytest.mark.skipif(
    "cpp.march" not in torch._inductor.config.get_config_copy(),
    reason="this torch cannot pin AOTInductor's instruction set",
)


@pytest.fixture
def shared(aoti_program: compiler.Program) -> Iterator[shared_memory.SharedMemory]:
    block = shared_memory.SharedMemory(create=True, size=aoti_program.arena_bytes)
    yield block
    block.close()
    block.unlink()


def test_the_program_holds_code_and_no_weights(aoti_program: compiler.Program) -> None:
    (target,) = aoti_program.targets

    assert (target.backend, target.requirement) == ("aoti", "x86-64-v3")
    assert target.matches(aoti_program.packages[target.path])
    assert aoti_program.backend == "aoti"


def test_both_backends_were_verified_with_both_checkpoints(aoti_program: compiler.Program) -> None:
    seen = {(figure.backend, figure.checkpoint) for figure in aoti_program.report.figures}

    assert seen == {(backend, checkpoint) for backend in ("eager", "aoti") for checkpoint in ("given", "perturbed")}
    assert all(figure.passed for figure in aoti_program.report.figures)


def test_the_graph_is_the_eager_one(aoti_program: compiler.Program, eager_program: compiler.Program) -> None:
    """But for the layout of weights that are packed."""
    with_eager_layout = tuple(
        replace(constant, strides=eager.strides)
        for constant, eager in zip(aoti_program.constants, eager_program.constants, strict=True)
    )

    assert replace(aoti_program.definition, constants=with_eager_layout) == eager_program.definition


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_a_swap_changes_every_answer_and_back(
    aoti_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, rows: int
) -> None:
    first, second = residual_net(1), residual_net(2)
    arenas = [aoti_program.allocate(), aoti_program.allocate()]
    for model, arena in zip((first, second), arenas, strict=True):
        aoti_program.evaluate(model.state_dict(), arena)
    runner = aoti_program.load_runner(arenas[0])

    before = runner(images[:rows])[0]
    runner.swap(arenas[1])
    between = runner(images[:rows])[0]
    runner.swap(arenas[0])

    assert torch.equal(runner(images[:rows])[0], before)
    torch.testing.assert_close(before, first(images[:rows]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(between, second(images[:rows]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["stem.0.weight.folded_bias", "literal[temperature]", "literal[lifted_tensor_0]"])
def test_a_constant_of_few_elements_is_read_and_not_baked(
    aoti_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, name: str
) -> None:
    memory = aoti_program.allocate()
    aoti_program.evaluate(residual_net(1).state_dict(), memory)
    assert memory[name].numel() <= 8
    runner = aoti_program.load_runner(memory)
    before = runner(images)[0]

    memory[name] += 1.0

    eager = aoti_program.load_runner(memory, backend="eager")
    assert not torch.equal(runner(images)[0], before)
    torch.testing.assert_close(runner(images)[0], eager(images)[0], rtol=1e-4, atol=1e-4)


def test_an_arena_in_shared_memory_is_swapped_in(
    aoti_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    images: Tensor,
    shared: shared_memory.SharedMemory,
) -> None:
    first, second = residual_net(1), residual_net(2)
    runner = aoti_program.bind(first.state_dict())
    own = aoti_program.bind(second.state_dict())(images)[0]

    memory = aoti_program.allocate(shared.buf)
    aoti_program.evaluate(second.state_dict(), memory)
    runner.swap(memory)
    found = runner(images)[0]

    assert torch.equal(found, own)
    runner.swap(aoti_program.allocate())
    del memory


def test_a_row_is_bit_identical_whatever_its_neighbours(
    aoti_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    runner = aoti_program.bind(residual_net(1).state_dict())
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    mixed = torch.cat([images[:3], images[9:13] * 50])

    whole, shuffled, other = runner(images[:7])[0], runner(images[:7][order])[0], runner(mixed)[0]

    assert torch.equal(whole[order], shuffled)
    assert torch.equal(whole[:3], other[:3])


def test_a_saved_package_runs_after_loading(
    aoti_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    state = residual_net(5).state_dict()

    loaded = compiler.load(aoti_program.save(tmp_path / "program"))

    assert loaded == aoti_program
    assert torch.equal(loaded.bind(state)(images)[0], aoti_program.bind(state)(images)[0])


@pytest.mark.parametrize(
    ("spoil", "quality"),
    [
        (lambda tensor: tensor.double(), "dtype"),
        (lambda tensor: tensor[:1], "shape"),
        (lambda tensor: tensor.t().contiguous().t(), "strides"),
        (lambda tensor: tensor.to("meta"), "device"),
    ],
)
def test_a_wrong_constant_never_reaches_native_code(
    aoti_program: compiler.Program, spoil: Callable[[Tensor], Tensor], quality: str
) -> None:
    memory = aoti_program.allocate()
    memory["head.weight"] = spoil(memory["head.weight"])

    with pytest.raises(compiler.TensorMismatchError, match=f"constant 'head.weight': {quality}"):
        aoti_program.load_runner(memory)


def test_a_missing_constant_never_reaches_native_code(aoti_program: compiler.Program) -> None:
    with pytest.raises(compiler.MissingTensorError, match="constants: 14 of the tensors"):
        aoti_program.load_runner({})


def test_loading_leaves_no_folder_and_no_environment_behind(
    aoti_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    images: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = dict(os.environ)

    runner = aoti_program.bind(residual_net(1).state_dict())
    runner(images)

    assert list(tmp_path.iterdir()) == []
    assert dict(os.environ) == environment


def test_a_folder_left_by_a_kill_is_swept_and_a_fresh_one_is_not(
    aoti_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, fresh, foreign = (tmp_path / name for name in ("treering-aoti-old", "treering-aoti-new", "other"))
    for folder in (old, fresh, foreign):
        folder.mkdir()
    for folder in (old, foreign):
        os.utime(folder, (0, 0))

    aoti_program.bind(residual_net(1).state_dict())

    assert sorted(tmp_path.iterdir()) == sorted([fresh, foreign])


def test_a_package_of_another_torch_is_refused(aoti_program: compiler.Program) -> None:
    (target,) = aoti_program.targets
    foreign = replace(aoti_program, targets=(replace(target, torch_version="2.10.0"),))

    with pytest.raises(compiler.BackendRefusedError, match=r"built by torch 2\.10\.0 and this is torch 2\.1"):
        foreign.load_runner(foreign.allocate())


def test_a_package_that_torch_cannot_load_is_refused_with_its_words(aoti_program: compiler.Program) -> None:
    (target,) = aoti_program.targets
    broken = replace(aoti_program, packages={target.path: b"PK\x05\x06" + bytes(18)})

    with pytest.raises(compiler.BackendRefusedError, match="torch cannot load its package"):
        broken.load_runner(broken.allocate())


def test_a_torch_without_the_options_is_refused_before_any_work(
    aoti_program: compiler.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aoti, "OPTIONS", {**aoti.OPTIONS, "cpp.no_such_option": 1})

    with pytest.raises(compiler.BackendRefusedError, match=r"has no option cpp\.no_such_option.*backend='eager'"):
        aoti.BACKEND.refuse(aoti_program.definition, requirement=instruction_sets.BASE)


def test_a_machine_without_a_compiler_is_refused_before_any_work(
    aoti_program: compiler.Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(compiler.BackendRefusedError, match=r"no C\+\+ compiler \('no-such-compiler'.*backend='eager'"):
        aoti.BACKEND.refuse(aoti_program.definition, requirement=instruction_sets.BASE)


@pytest.mark.parametrize(("flags", "lacks"), [("fpu sse avx", "avx2"), ("", "no CPU flags")])
def test_a_cpu_without_the_instruction_set_is_refused(
    aoti_program: compiler.Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, lacks: str
) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text(f"flags : {flags}\n" if flags else "processor : 0\n")
    monkeypatch.setattr(instruction_sets, "CPU_LISTING", listing)

    with pytest.raises(compiler.BackendRefusedError, match=lacks):
        aoti_program.load_runner(aoti_program.allocate())


@pytest.mark.slow
def test_a_graph_that_was_built_before_is_built_for_another_machine_alone(
    aoti_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    images: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from compiler.cache import Cache, entry_key

    (package,) = aoti_program.packages.values()
    base, native = instruction_sets.BASE, instruction_sets.requirement_here("native")
    key = entry_key(
        digest=aoti_program.digest, backend="aoti", requirement=base, build_key=aoti.BACKEND.build_key(requirement=base)
    )
    Cache(folder=tmp_path).store(key, package)
    built: list[str] = []
    build = aoti._compile

    def watched(*arguments: Any, options: Any) -> bytes:
        built.append(options["cpp.march"])
        return build(*arguments, options=options)

    monkeypatch.setattr(aoti, "_compile", watched)

    both = compiler.compile(
        residual_net(7),
        (images[:1],),
        dynamic={"x": {0: compiler.Dim(name="batch", max=16)}},
        targets=(base, "native"),
        cache=tmp_path,
    )

    requirements = [target.requirement for target in both.targets]
    assert requirements == list(dict.fromkeys([base, native]))
    assert built == ["native"] * (len(requirements) - 1)
    assert both.targets[0] == aoti_program.targets[0]
    assert both.report.cache == "compiled: no program of this key was kept"
    assert len({figure.backend for figure in both.report.figures}) == 1 + len(requirements)
    assert all(figure.passed for figure in both.report.figures)


def test_a_spoiled_cache_entry_is_told_and_removed(tmp_path: Path) -> None:
    from compiler.cache import Cache

    cache = Cache(folder=tmp_path)
    cache.store("key", b"package")
    (entry,) = tmp_path.iterdir()
    assert cache.find("key") == b"package"
    assert not cache.notes

    entry.write_bytes(b"other")

    assert cache.find("key") is None
    assert [str(entry) in note for note in cache.notes] == [True]
    assert not list(tmp_path.iterdir())


def test_nothing_is_unpickled_from_folder_to_answer(
    aoti_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    found: list[str] = []
    listening = True

    def listen(event: str, arguments: object) -> None:
        if listening and event == "pickle.find_class":
            found.append(str(arguments))

    sys.addaudithook(listen)
    pickle.loads(pickle.dumps(Path))  # noqa: S301 (our own bytes: proves that the hook is live)
    assert len(found) == 1

    loaded = compiler.load(aoti_program.save(tmp_path / "program"))
    for backend in ("aoti", "eager"):
        loaded.bind(residual_net(1).state_dict(), backend=backend)(images)
    listening = False

    assert len(found) == 1


def test_a_temporary_folder_with_spaces_and_other_letters_serves_a_build_and_stays_empty(
    aoti_program: compiler.Program, odd_folder: Path
) -> None:
    assert aoti_program.backend == "aoti"
    assert list(odd_folder.iterdir()) == []


def test_torch_in_a_path_with_spaces_is_refused_before_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/home/me/my clone/.venv/torch/__init__.py")

    with pytest.raises(compiler.BackendRefusedError, match=r"torch is installed in '/home/me/my clone/.venv/torch'"):
        compiler.compile(nn.Linear(3, 2).eval(), (torch.randn(3, 3),), backend="aoti")
