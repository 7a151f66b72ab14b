"""Programs on a GPU: captured graphs, new weights in place, inputs of several sizes, threads and streams."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.backends.captured import CapturedRuns
from compiler.errors import BackendRefusedError, TensorMismatchError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]

HIDDEN = 64
GPU = torch.device("cuda")


class Net(nn.Module):
    """Layers of which a formula folds one, and a tensor that an operator makes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.widen, self.norm_0 = nn.Linear(HIDDEN, 96), nn.BatchNorm1d(96)
        self.narrow, self.norm = nn.Linear(96, HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 64) to (N, 64)."""
        wide = torch.nn.functional.gelu(self.norm_0(self.widen(x)))
        places = torch.arange(x.shape[0])[:, None] % 2
        normalised: Tensor = self.norm(x + self.narrow(wide) * places)
        return normalised


@pytest.fixture(scope="module")
def program() -> compiler.Program:
    rows = compiler.Dim(name="rows", max=64)
    return compiler.compile(
        Net().eval().half(), (example(4),), dynamic={"x": {0: rows}}, backend="eager", targets=("cuda",)
    )


def example(rows: int, *, seed: int = 0) -> Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed)).half()


def weights(seed: int) -> dict[str, Tensor]:
    return Net(seed).eval().half().state_dict()


def near(found: Tensor, rows: Tensor, seed: int) -> bool:
    with torch.no_grad():
        exact = Net(seed).eval().half().double()(rows.double())
    return bool((found.cpu() - exact).norm() / exact.norm() < 2e-3)


def test_a_program_for_a_gpu_was_verified_on_it(program: compiler.Program) -> None:
    assert {figure.backend for figure in program.report.figures} == {"eager", "cuda"}


def test_new_weights_in_place_are_seen_by_the_graph_that_was_captured(program: compiler.Program) -> None:
    runner, x = program.bind(weights(0), device=GPU), example(4)
    (first,) = runner(x.to(GPU))
    runs = runner._engine._captured  # type: ignore[attr-defined]
    (captured,) = runs._graphs.values()

    program.rebind(weights(1), runner)
    (second,) = runner(x.to(GPU))
    program.rebind(weights(0), runner)
    (third,) = runner(x.to(GPU))

    assert near(first, x, 0)
    assert near(second, x, 1)
    assert torch.equal(first, third)
    assert list(runs._graphs.values()) == [captured]


def test_every_size_has_its_graph_and_results_are_the_callers(program: compiler.Program) -> None:
    runner = program.bind(weights(0), device=GPU)
    batches = [example(rows, seed=rows) for rows in (1, 2, 7, 64, 7, 1)]

    found = [runner(batch.to(GPU))[0] for batch in batches]

    assert all(near(result, batch, 0) for result, batch in zip(found, batches, strict=True))
    assert runner._engine._captured.graphs == 4  # type: ignore[attr-defined]


def test_other_memory_is_another_graph(program: compiler.Program) -> None:
    runner, x = program.bind(weights(0), device=GPU), example(4)
    runner(x.to(GPU))
    other = program.allocate(device=GPU)
    program.evaluate(weights(1), other)

    runner.swap(other)

    assert near(runner(x.to(GPU))[0], x, 1)


def test_callers_on_threads_and_streams_of_their_own_get_their_own_answers(program: compiler.Program) -> None:
    runner = program.bind(weights(0), device=GPU)
    batches = [example(5, seed=seed) for seed in range(40)]

    def ask(batch: Tensor) -> Tensor:
        with torch.cuda.stream(torch.cuda.Stream()):
            return runner(batch.to(GPU))[0].cpu()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, batches))

    assert all(near(result, batch, 0) for result, batch in zip(found, batches, strict=True))


def test_a_gpu_is_refused_where_a_backend_has_none_and_inputs_must_be_there(program: compiler.Program) -> None:
    memory = program.allocate(device=GPU)

    with pytest.raises(BackendRefusedError, match="constants are on cuda, expected cpu"):
        program.load_runner(memory, backend="onnx")
    with pytest.raises(TensorMismatchError, match=r"device.*cpu.*cuda:0"):
        program.load_runner(memory)(example(4))


def test_graphs_are_forgotten_beyond_the_bound(program: compiler.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.backends.captured.MOST_GRAPHS", 2)
    runs = CapturedRuns(program.definition, GPU)
    memory = program.allocate(device=GPU)
    program.evaluate(weights(0), memory)
    runs.bind(tuple(memory.values()))

    for rows in (1, 2, 3, 1):
        x = example(rows)
        assert near(runs.run([x.to(GPU)])[0], x, 0)
        assert runs.graphs <= 2
