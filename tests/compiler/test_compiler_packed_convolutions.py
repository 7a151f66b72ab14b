"""Weights of convolutions are packed when they are bound: the answers stay, and new ones arrive in the packed copy."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.backends import packed_convolutions

pytestmark = pytest.mark.skipif(
    "cpp.march" not in torch._inductor.config.get_config_copy() or not torch.backends.mkldnn.is_available(),
    reason="this torch cannot pin AOTInductor's instruction set, or has no oneDNN",
)


class Kinds(nn.Module):
    """A convolution of each kind: those that are packed, and those that may not be."""

    def __init__(self) -> None:
        super().__init__()
        self.one_channel = nn.Conv2d(1, 8, 3, padding=1)
        self.plain = nn.Conv2d(8, 16, 3, stride=(2, 1), padding=1)
        self.dilated = nn.Conv2d(16, 16, (3, 2), dilation=2, bias=False)
        self.grouped = nn.Conv2d(16, 24, 3, groups=4, padding=1)
        self.depthwise = nn.Conv2d(24, 24, 3, groups=24, padding=1)
        self.squeeze = nn.Conv2d(24, 6, 1)
        self.of_one_pixel = nn.Conv2d(6, 24, 3, padding=2)
        self.tied = nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, 12, 12) to (N, 24)."""
        x = self.plain(self.one_channel(x).relu()).relu()
        x = self.depthwise(self.grouped(self.dilated(x)).relu())
        x = x + nn.functional.silu(x)
        spread = self.of_one_pixel(self.squeeze(x.mean((2, 3), keepdim=True)).relu())
        answer: Tensor = (self.tied(self.tied(x)) + spread.sum((2, 3), keepdim=True)).mean((2, 3))
        return answer


@pytest.fixture(scope="module")
def program() -> compiler.Program:
    return compiler.compile(
        model(0), (images()[:1],), dynamic={"x": {0: compiler.Dim(name="batch", max=16)}}, backend="aoti"
    )


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Kinds().eval()


def images() -> Tensor:
    return torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(1))


def test_those_are_packed_whose_answer_has_one_layout_and_whose_weight_has_one_reader(
    program: compiler.Program,
) -> None:
    found = packed_convolutions.find(program.definition)

    assert {program.constants[entry.constant].name.split(".")[0] for entry in found} == {
        "plain",
        "dilated",
        "grouped",
        "depthwise",
        "squeeze",
    }


def test_those_lie_row_major_and_others_channels_last(program: compiler.Program) -> None:
    packed = {entry.constant for entry in packed_convolutions.find(program.definition)}
    weights = [(index in packed, program.allocate()[entry.name]) for index, entry in enumerate(program.constants)]

    assert all(tensor.is_contiguous() for is_packed, tensor in weights if is_packed)
    assert all(
        tensor.is_contiguous(memory_format=torch.channels_last)
        for is_packed, tensor in weights
        if tensor.dim() == 4 and not is_packed
    )


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_every_kind_answers_as_the_model_does(program: compiler.Program, rows: int) -> None:
    runner = program.bind(model(1).state_dict())

    torch.testing.assert_close(runner(images()[:rows])[0], model(1)(images()[:rows]), rtol=1e-4, atol=1e-5)


def test_new_weights_arrive_in_what_was_packed_and_old_ones_come_back_bit_for_bit(program: compiler.Program) -> None:
    first, second = model(1), model(2)
    runner = program.bind(first.state_dict())
    before = runner(images())[0]

    program.rebind({"grouped.weight": second.state_dict()["grouped.weight"]}, runner, changed=["grouped.weight"])
    between = runner(images())[0]
    program.rebind(first.state_dict(), runner)

    first.grouped.weight = second.grouped.weight
    torch.testing.assert_close(between, first(images()), rtol=1e-4, atol=1e-5)
    assert not torch.equal(before, between)
    assert torch.equal(runner(images())[0], before)


@pytest.mark.slow
def test_a_package_that_was_compiled_before_weights_were_packed_reads_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = nn.Sequential(nn.Conv2d(2, 3, 3)).eval()
    data = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    with monkeypatch.context() as without:
        without.setattr(packed_convolutions, "find", lambda definition: ())
        old = compiler.compile(small, (data,), backend="aoti")

    runner = old.bind(small.state_dict())

    assert packed_convolutions.find(old.definition)
    torch.testing.assert_close(runner(data)[0], small(data), rtol=1e-4, atol=1e-5)


def test_however_often_weights_are_exchanged_they_are_packed_into_the_same_memory(program: compiler.Program) -> None:
    seen: set[int] = set()
    first, second = (model(seed).state_dict() for seed in (1, 2))
    runner = program.bind(first)
    before = runner(images())[0]

    for _ in range(4):
        for tensors in (second, first):
            program.rebind(tensors, runner)
            bound: Any = runner.bound.derived
            seen.update(torch.ops.mkldnn.data_ptr(each) for name, each in bound.items() if name.startswith("packed"))

    assert len(seen) == 2 * len(packed_convolutions.find(program.definition))
    assert torch.equal(runner(images())[0], before)


def test_what_was_bound_before_is_not_packed_over_while_it_may_come_back(program: compiler.Program) -> None:
    runner = program.bind(model(1).state_dict())
    before, kept = runner(images())[0], runner.bound
    memory = program.allocate()

    for seed in (2, 3, 4):
        program.evaluate(model(seed).state_dict(), memory)
        runner.swap(memory)
    runner.swap(kept)

    assert torch.equal(runner(images())[0], before)
