"""New weights for a runner: written in place, only what changed, in one pass, and back again bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import compiler
from compiler import evaluation
from compiler.formula import Formula, Step, compute

needs_aoti = pytest.mark.skipif(
    "cpp.march" not in torch._inductor.config.get_config_copy(),
    reason="this torch cannot pin AOTInductor's instruction set",
)
w, v, s = (Formula.tensor(name) for name in "wvs")
SCALE = (s * (s * s + 0.5).rsqrt()).reshape((6, 1, 1))
FORMULAS = {
    "scaled rows": w * SCALE,
    "a scale without rows": w * s.reshape((1, 6, 1)),
    "a scale of lower rank": w + v,
    "both operands cut": -(w + w * SCALE) - w,
    "a step that two read": (w * SCALE) * (w * SCALE + 1.0),
    "rows under another shape": (w.reshape((2, 3, 6, 4)) * s.reshape((1, 1, 6, 1))).reshape((6, 6, 4)),
    "only broadcasting": s.reshape((6, 1, 1)) * v,
    "rows of a reshaped value": w.reshape((6, 6, 4)) + w,
    "divided and scaled": (w * 3.0) / (s * s + 1.0).sqrt().reshape((6, 1, 1)),
    "a sum within": w - w.sum((1,)).reshape((6, 1, 4)) * s.exp().reshape((6, 1, 1)),
    "copied": Formula.cat((w.narrow(0, 2, 4), w.narrow(0, 0, 2)), 0),
}


@pytest.fixture
def leaves() -> dict[tuple[str, str], Tensor]:
    generator = torch.Generator().manual_seed(5)
    sizes = {"w": (6, 6, 4), "v": (6, 4), "s": (6,)}
    return {("tensor", name): torch.randn(size, generator=generator) for name, size in sizes.items()}


@pytest.mark.parametrize("block", [1, 24, 50, 10**6])
@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_blocks_hold_the_bits_of_the_whole(
    leaves: dict[tuple[str, str], Tensor], monkeypatch: pytest.MonkeyPatch, name: str, block: int
) -> None:
    monkeypatch.setattr(evaluation, "BLOCK_ELEMENTS", block)
    out = torch.full((6, 6, 4), float("nan"))

    evaluation.evaluate_into(out, FORMULAS[name], leaves)

    assert torch.equal(out, compute(FORMULAS[name], leaves).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype_is_rounded_once_into_any_layout(
    leaves: dict[tuple[str, str], Tensor], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(evaluation, "BLOCK_ELEMENTS", 24)
    out = torch.empty((4, 6, 6), dtype=dtype).permute(2, 1, 0)

    evaluation.evaluate_into(out, FORMULAS["scaled rows"], leaves)

    assert torch.equal(out, compute(FORMULAS["scaled rows"], leaves).to(dtype))


@given(st.data())
def test_any_formula_in_blocks_holds_the_bits_of_the_whole(data: st.DataObject) -> None:
    leaves = {("tensor", name): torch.randn(6, 1 if name == "s" else 5) for name in "wvs"}
    grown = [w, v, s]
    for _ in range(data.draw(st.integers(1, 6))):
        left, right = (data.draw(st.sampled_from(grown)) for _ in range(2))
        choices = (left + right, left - right, left * right, -left, left + 0.25, (left * left + 1.0).rsqrt())
        grown.append(data.draw(st.sampled_from(choices)))
    formula = next((entry for entry in reversed(grown) if len(entry.steps) <= 64), w)
    whole = compute(formula, leaves)
    out = torch.empty(whole.shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "BLOCK_ELEMENTS", 10)
        evaluation.evaluate_into(out, formula, leaves)

    assert torch.equal(out, whole.float())


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the largest float64 tensor that an operator gave."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype == torch.float64:
            self.elements = max(self.elements, result.numel())
        return result


def test_no_weight_is_held_whole_in_float64() -> None:
    leaves = {("tensor", "w"): torch.randn(256, 8, 256), ("tensor", "s"): torch.randn(256)}
    out = torch.empty(256, 8, 256)

    with _Largest() as seen:  # type: ignore[no-untyped-call]
        evaluation.evaluate_into(out, w * (s + 1.0).reshape((256, 1, 1)), leaves)

    assert 0 < seen.elements <= evaluation.BLOCK_ELEMENTS < out.numel()


def test_a_formula_that_doubles_itself_is_computed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BLOCK_ELEMENTS", 2)
    steps = [Step(operation="tensor", name="w")]
    steps += [Step(operation="add", operands=(index, index)) for index in range(60)]
    out = torch.empty(4, 2)

    evaluation.evaluate_into(out, Formula(steps=tuple(steps)), {("tensor", "w"): torch.ones(4, 2)})

    assert torch.equal(out, torch.full((4, 2), 2.0**60))


@pytest.mark.parametrize("backend", ["eager", pytest.param("aoti", marks=[needs_aoti, pytest.mark.slow])])
def test_a_then_b_then_a_gives_the_answers_bit_for_bit(
    request: pytest.FixtureRequest, residual_net: Callable[..., nn.Module], images: Tensor, backend: str
) -> None:
    program: compiler.Program = request.getfixturevalue(f"{backend}_program")
    first, second = residual_net(1).state_dict(), residual_net(2).state_dict()
    runner = program.bind(first)
    places = {name: tensor.data_ptr() for name, tensor in runner.constants.items()}
    before = runner(images)[0]

    program.rebind(second, runner)
    between = runner(images)[0]
    program.rebind(first, runner)

    assert torch.equal(between, program.bind(second)(images)[0])
    assert torch.equal(runner(images)[0], before)
    assert not torch.equal(between, before)
    assert {name: tensor.data_ptr() for name, tensor in runner.constants.items()} == places


def test_only_what_changed_is_written_and_has_to_be_given(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    first, second = residual_net(1).state_dict(), dict(residual_net(1).state_dict())
    second["head.bias"] = first["head.bias"] + 1.0
    runner = eager_program.bind(first)

    written = eager_program.rebind({"head.bias": second["head.bias"]}, runner, changed=["head.bias"])

    assert written == ("head.bias",)
    assert torch.equal(runner(images)[0], eager_program.bind(second)(images)[0])


def test_what_does_not_fit_changes_no_answer(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    runner = eager_program.bind(residual_net(1).state_dict())
    before = runner(images)[0]
    spoiled = dict(residual_net(2).state_dict(), **{"stem.1.running_var": torch.ones(9)})

    with pytest.raises(compiler.TensorMismatchError, match=r"'stem\.1\.running_var': shape is \(9,\), expected \(8,\)"):
        eager_program.rebind(spoiled, runner)

    assert torch.equal(runner(images)[0], before)


class Tied(nn.Module):
    """A table that is also the last layer, and a weight that the code transposes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.turn = nn.Parameter(torch.randn(6, 6))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1) @ self.turn.t())


def test_tied_and_transposed_weights_come_back_bit_for_bit(randomised: Callable[..., nn.Module]) -> None:
    ids = torch.arange(10).reshape(2, 5)
    program = compiler.compile(Tied().eval(), (ids,), backend="eager")
    first, second = (randomised(Tied(), seed) for seed in (1, 2))
    runner = program.bind(first.state_dict())
    before = runner(ids)[0]

    program.rebind(second.state_dict(), runner)
    between = runner(ids)[0]
    program.rebind(first.state_dict(), runner)

    torch.testing.assert_close(between, second(ids), rtol=1e-5, atol=1e-6)
    assert torch.equal(runner(ids)[0], before)
