"""A runner takes exactly what the program states, and a row's answer does not depend on its neighbours."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import compiler


@pytest.fixture
def runner(eager_program: compiler.Program, residual_net) -> compiler.Runner:  # type: ignore[no-untyped-def]
    return eager_program.bind(residual_net(1).state_dict())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "0 inputs were given, expected 1: x"),
        ((torch.zeros(1, 1, 12, 12), torch.zeros(1)), "2 inputs were given"),
        ((torch.zeros(1, 1, 12, 12, dtype=torch.float64),), "input 'x': dtype is float64, expected float32"),
        ((torch.zeros(1, 12, 12),), r"input 'x': shape is \(1, 12, 12\), expected 4 axes"),
        ((torch.zeros(1, 1, 12, 13),), "input 'x': axis 3 is 13, expected 12"),
        ((torch.zeros(17, 1, 12, 12),), r"input 'x': axis 0 \(batch\) is 17, expected 1 to 16"),
        ((torch.zeros(0, 1, 12, 12),), r"input 'x': axis 0 \(batch\) is 0, expected 1 to 16"),
        ((torch.zeros(2, 1, 12, 12).transpose(2, 3),), "input 'x': strides is .* expected those of a contiguous"),
        ((torch.zeros(1, 1, 12, 12, device="meta"),), "input 'x': device is meta, expected cpu"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(
    runner: compiler.Runner, inputs: tuple[Tensor, ...], message: str
) -> None:
    with pytest.raises(compiler.CallError, match=message):
        runner(*inputs)


def test_inputs_that_share_a_dimension_must_agree() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    batch = compiler.Dim(name="batch", max=8)
    program = compiler.compile(
        Adds().eval(),
        (torch.randn(2, 3), torch.randn(2, 3)),
        dynamic={"x": {0: batch}, "y": {0: batch}},
        backend="eager",
    )

    with pytest.raises(compiler.TensorMismatchError, match=r"'y': axis 0 \(batch\) is 5, expected 4, as in the inputs"):
        program.bind({})(torch.randn(4, 3), torch.randn(5, 3))


def test_a_row_is_bit_identical_whatever_its_neighbours(runner: compiler.Runner, images: Tensor) -> None:
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    mixed = torch.cat([images[:3], images[9:13] * 50])

    whole, shuffled, other = runner(images[:7])[0], runner(images[:7][order])[0], runner(mixed)[0]

    assert torch.equal(whole[order], shuffled)
    assert torch.equal(whole[:3], other[:3])


def test_a_swap_that_is_refused_leaves_the_old_constants_in_use(
    eager_program: compiler.Program, runner: compiler.Runner, images: Tensor
) -> None:
    before = runner(images)[0]
    broken = eager_program.allocate()
    broken["head.weight"] = broken["head.weight"].double()

    with pytest.raises(compiler.TensorMismatchError):
        runner.swap(broken)

    assert torch.equal(runner(images)[0], before)


def test_an_unknown_backend_is_answered_with_those_there_are(eager_program: compiler.Program) -> None:
    with pytest.raises(
        compiler.UnknownBackendError, match="unknown backend 'onnxx', expected one of aoti, eager, onnx"
    ) as caught:
        eager_program.load_runner(eager_program.allocate(), backend="onnxx")

    assert caught.value.known == ("aoti", "eager", "onnx")


def test_a_backend_without_a_package_says_what_to_do(eager_program: compiler.Program) -> None:
    with pytest.raises(compiler.BackendRefusedError, match=r"no package for it.*backend='eager'"):
        eager_program.load_runner(eager_program.allocate(), backend="aoti")


def test_prepared_constants_are_swapped_in_and_what_was_bound_comes_back(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    runner = eager_program.bind(residual_net(1).state_dict())
    before, bound = runner(images)[0], runner.bound
    memory = eager_program.allocate()
    eager_program.evaluate(residual_net(2).state_dict(), memory)

    runner.swap(runner.prepare(memory))
    between = runner(images)[0]
    runner.swap(bound)

    assert torch.equal(between, eager_program.bind(residual_net(2).state_dict())(images)[0])
    assert torch.equal(runner(images)[0], before)


def test_constants_that_another_runner_prepared_are_refused(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module]
) -> None:
    runner = eager_program.bind(residual_net(1).state_dict())
    other = eager_program.bind(residual_net(2).state_dict())

    with pytest.raises(compiler.CallError, match="prepared by another runner"):
        runner.swap(other.bound)
