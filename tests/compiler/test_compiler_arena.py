"""The eager backend's arena: the same bits as without it, nobody else's memory touched, and less of its own."""

import threading
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.backends.arena import MOST_SIZES, ArenaInterpreter
from compiler.interpreter import Interpreter


class Block(nn.Module):
    """Attention and a network of two layers, with both residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Views(nn.Module):
    """Values that are read through views long after, written over by nobody, and shown by outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        doubled = x * 2
        late = doubled.transpose(0, 1)
        first, second = (x + 1).chunk(2, dim=1)
        summed = torch.relu(doubled + 1) + torch.sigmoid(first).sum()
        seen = torch.tanh(summed)
        return late * 3, seen.reshape(-1), torch.exp(second) + seen[:, :1]


class Twice(nn.Module):
    """An operand that is both arguments, one that stands in the other as a view, one that is an input's."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        y = y + y
        y = y + y.transpose(0, 1)
        z = x.relu() * y
        return z.mul(z.sum(0)).add(x)


def images(rows: int) -> Tensor:
    return torch.randn(rows, 1, 12, 12, generator=torch.Generator().manual_seed(rows))


def tokens(rows: int) -> Tensor:
    return torch.randn(rows, 5, 32, generator=torch.Generator().manual_seed(rows))


def square(rows: int) -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(rows))


# name → (the model, an input of so many rows)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "a transformer": (Block, tokens),
    "views": (Views, square),
    "one operand twice": (Twice, square),
    "a linear layer": (lambda: nn.Sequential(nn.Linear(32, 48), nn.GELU()), lambda rows: tokens(rows)[:, 0]),
}

Made = tuple[compiler.Program, list[Tensor]]
Running = tuple[compiler.Program, list[Tensor], Callable[[int], Tensor]]


@cache
def made(name: str) -> Made:
    """A program, of any number of rows where it has rows, and its constants; compiled once for all tests."""
    torch.manual_seed(0)
    build, make = MODELS[name]
    model = build().eval()
    dynamic = {"x": {0: compiler.Dim(name="batch", max=9)}} if make is tokens else None
    program = compiler.compile(model, (make(2),), dynamic=dynamic, backend="eager")
    return program, constants(program, model)


def constants(program: compiler.Program, model: nn.Module) -> list[Tensor]:
    memory = program.allocate()
    program.evaluate(model.state_dict(), memory)
    return [memory[constant.name] for constant in program.constants]


@pytest.fixture(scope="module")
def net(eager_program: compiler.Program, residual_net: Callable[..., nn.Module]) -> Made:
    return eager_program, constants(eager_program, residual_net())


@pytest.fixture(params=["a residual net", "a transformer", "views", "one operand twice"])
def running(
    request: pytest.FixtureRequest, net: Made
) -> tuple[compiler.Program, list[Tensor], Callable[[int], Tensor]]:
    if request.param == "a residual net":
        return *net, images
    return *made(request.param), MODELS[request.param][1]


def test_every_run_gives_the_bits_of_a_run_without_arena(
    running: Running,
) -> None:
    program, constants, make = running
    plain, with_arena = Interpreter(program.definition), ArenaInterpreter(program.definition)
    before = [constant.clone() for constant in constants]
    kept: list[tuple[Tensor, Tensor]] = []

    with torch.no_grad():
        for rows in (2, 2, 7, 2, 7, 1, 9, 1, 2):
            x = make(rows)
            expected = plain.run([x], constants)
            with_arena._arena.fill_(0xFF)  # NaN, wherever something is read that was not written in this run
            found = with_arena.run([x], constants)

            assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, expected, strict=True))
            assert torch.equal(x, make(rows))
            kept += zip(found, expected, strict=True)

    assert all(torch.equal(found, expected) for found, expected in kept)  # outputs outlive the runs after them
    assert all(torch.equal(now, then) for now, then in zip(constants, before, strict=True))


def test_a_transformer_lies_in_the_arena_and_a_convolution_s_result_is_written_over(net: Made) -> None:
    program, constants = made("a transformer")
    plan = program.memory_plan({"batch": 8})
    inside = ArenaInterpreter(program.definition)
    residual, weights = net
    over = ArenaInterpreter(residual.definition)

    with torch.no_grad():
        for interpreter, x, memory in ((inside, tokens(8), constants), (over, images(8), weights)):
            interpreter.run([x], memory)
            interpreter.run([x], memory)

    assert 0.5 * plan.lower_bound_bytes < inside.arena_bytes < plan.total_bytes / 2
    (planned,) = over._plans.values()
    operators = [residual.definition.nodes[node].operator for node in planned.in_place]
    assert operators.count("aten.relu.default") == 5
    assert operators.count("aten.add.Tensor") >= 2


def test_the_arena_grows_to_the_largest_run_and_stays() -> None:
    program, constants = made("a transformer")
    interpreter = ArenaInterpreter(program.definition)
    sizes = []

    with torch.no_grad():
        for rows in (2, 2, 8, 8, 3, 3):
            interpreter.run([tokens(rows)], constants)
            sizes.append(interpreter.arena_bytes)

    assert sizes[0] == 0  # the first run at some sizes is watched
    assert 0 < sizes[1] == sizes[2] < sizes[3] == sizes[5]


def test_plans_of_many_sizes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.backends.arena.MOST_SIZES", 3)
    program, constants = made("a transformer")
    plain, interpreter = Interpreter(program.definition), ArenaInterpreter(program.definition)

    with torch.no_grad():
        for rows in (1, 1, 2, 2, 3, 3, 4, 4, 1, 1):
            (found,), (expected,) = (it.run([tokens(rows)], constants) for it in (interpreter, plain))
            assert torch.equal(found, expected)

    assert len(interpreter._plans) <= 3 < MOST_SIZES


def test_runs_at_the_same_time_are_right_each(
    running: Running,
) -> None:
    program, constants, make = running
    plain, interpreter = Interpreter(program.definition), ArenaInterpreter(program.definition)
    wrong: list[int] = []

    def answer(rows: int) -> None:
        with torch.no_grad():
            expected = plain.run([make(rows)], constants)
            for _ in range(40):
                found = interpreter.run([make(rows)], constants)
                if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                    wrong.append(rows)

    threads = [threading.Thread(target=answer, args=(rows,)) for rows in (1, 2, 5, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 32), (3, 6, 32), (2, 3, 6, 32), (0, 32)])
def test_a_linear_layer_is_the_same_in_the_arena(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    program, constants = made("a linear layer")
    interpreter = ArenaInterpreter(program.definition)
    x, given = torch.randn(shape).to(dtype), [constant.to(dtype) for constant in constants]

    with torch.no_grad():
        (expected,) = Interpreter(program.definition).run([x], given)
        for _ in range(2):
            (found,) = interpreter.run([x], given)

    assert torch.equal(found, expected)
