"""Verification finds wrong folds, baked constants and silent mistakes, and says where."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.definition import Definition
from compiler.formula import Formula
from compiler.runner import Runner
from compiler.specs import Dim
from compiler.verification import _measure, verify
from compiler.verification.inputs import KINDS, sizes_to_try
from compiler.verification.perturbation import perturb
from compiler.verification.reference import reference_of


def test_every_size_kind_and_checkpoint_is_measured(eager_program: compiler.Program) -> None:
    figures = eager_program.report.figures

    assert {figure.sizes["batch"] for figure in figures} == {1, 2, 7, 16}
    assert {figure.inputs for figure in figures} == {"example", "random", "large", "zeros", "equal"}
    assert {figure.checkpoint for figure in figures} == {"given", "perturbed"}
    assert len(figures) == 4 * 5 * 2
    assert all(figure.passed and figure.bound > 0 for figure in figures)


def spoiled(definition: Definition, name: str, change: Callable[[Formula], Formula]) -> Definition:
    constants = tuple(
        replace(entry, formula=change(entry.formula)) if entry.name == name else entry for entry in definition.constants
    )
    return replace(definition, constants=constants)


@pytest.mark.parametrize(
    "change",
    [
        lambda formula: -formula,
        lambda formula: formula + 1e-4,
        lambda formula: formula - Formula.tensor("block1.bn1.running_mean"),
    ],
    ids=["sign", "offset", "extra term"],
)
def test_a_wrong_formula_is_caught(
    eager_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    images: Tensor,
    change: Callable[[Formula], Formula],
) -> None:
    definition = spoiled(eager_program.definition, "block1.conv1.weight.folded_bias", change)
    wrong = replace(eager_program, definition=definition)

    with pytest.raises(compiler.VerificationError, match=r"backend 'eager'.*batch=") as caught:
        verify(
            definition,
            model=residual_net(),
            example_inputs=(images[:1],),
            bind=lambda tensors, backend: wrong.bind(tensors, backend=backend),
            backends=("eager",),
        )

    assert caught.value.error > caught.value.bound


class _BakedEngine:
    """An engine that keeps the first value of one constant, as AOTInductor does with small ones by default."""

    def __init__(self, program: compiler.Program, baked: dict[int, Tensor]) -> None:
        self._inner = program
        self._baked = baked
        self._constants: list[Tensor] = []

    def prepare(self, constants: Sequence[Tensor]) -> Sequence[Tensor]:
        return constants

    def bind(self, prepared: Sequence[Tensor]) -> None:
        self._constants = [self._baked.setdefault(index, tensor.clone()) if tensor.numel() == 8 else tensor
                           for index, tensor in enumerate(prepared)]  # fmt: skip

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        from compiler.interpreter import Interpreter

        return Interpreter(self._inner.definition).run(inputs, self._constants)


def test_a_baked_constant_shows_with_the_second_checkpoint(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    baked: dict[int, Tensor] = {}

    def bind(tensors: dict[str, Tensor], backend: str) -> Runner:
        memory = eager_program.allocate()
        eager_program.evaluate(tensors, memory)
        return Runner(eager_program.definition, _BakedEngine(eager_program, baked), memory)

    with pytest.raises(compiler.VerificationError, match="perturbed checkpoint"):
        verify(
            eager_program.definition,
            model=residual_net(),
            example_inputs=(images[:1],),
            bind=bind,
            backends=("eager",),
        )


def test_the_second_checkpoint_changes_every_element_and_keeps_variances_positive(
    residual_net: Callable[..., nn.Module],
) -> None:
    model = residual_net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    other = perturb(model).state_dict()

    for name, tensor in before.items():
        if tensor.is_floating_point():
            assert bool((other[name] != tensor).all()), name
        if name.endswith("running_var"):
            assert bool((other[name] > 0).all()), name
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_tied_weights_stay_tied_in_the_second_checkpoint() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight

    other = perturb(model)

    assert other[0].weight is other[1].weight
    assert not torch.equal(other[0].weight, model[0].weight)


def test_sizes_visit_one_two_seven_and_both_ends() -> None:
    assert sizes_to_try([Dim(name="n", max=64)]) == [{"n": 1}, {"n": 2}, {"n": 7}, {"n": 64}]
    assert sizes_to_try([Dim(name="n", min=4, max=9)]) == [{"n": 4}, {"n": 7}, {"n": 9}]
    assert sizes_to_try([]) == [{}]


def test_two_dimensions_meet_at_different_sizes() -> None:
    tried = sizes_to_try([Dim(name="n", max=4), Dim(name="m", max=4)])

    assert {"n": 1, "m": 1} in tried
    assert {"n": 4, "m": 4} in tried
    assert any(sizes["n"] != sizes["m"] for sizes in tried)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_indices_stay_among_those_of_the_example(kind: str) -> None:
    example = torch.tensor([[3, 5, 9], [9, 3, 3]])

    varied = KINDS[kind](example, torch.Generator().manual_seed(0))

    assert varied.shape == example.shape
    assert set(varied.flatten().tolist()) <= {3, 5, 9}


def test_a_model_with_indices_verifies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.GELU()).eval()
    dims = {"input": {0: Dim(name="batch", max=4), 1: Dim(name="length", max=9)}}

    program = compiler.compile(model, (torch.randint(0, 11, (2, 5)),), dynamic=dims, backend="eager")

    assert all(math.isfinite(figure.error) for figure in program.report.figures)
    assert program.outputs[0].dims == ("batch", "length", None)


def test_the_reference_stays_in_float64_where_the_model_says_float() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            bias = (1.0 - mask[:, None, None, :].float()) * -1e4
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    x = torch.randn(8, 4, 16, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(8, 16, dtype=torch.int64)
    weights = (x.double() @ x.double().transpose(2, 3) / 8**0.5).softmax(-1)

    (found,) = reference_of(Masked().eval())([x, mask])

    assert found.dtype == torch.float64
    torch.testing.assert_close(found, weights @ x.double(), rtol=1e-12, atol=1e-12)


class Halved(nn.Module):
    """Makes its mask in torch's default type, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = self.conv(torch.ones(1, 1, 9) * 0.1)
        return self.conv(x) * kept


def test_what_the_code_makes_in_the_default_type_is_widened_with_its_rounding() -> None:
    model = Halved().eval()
    exact = nn.Conv1d(1, 2, 3).double()
    exact.load_state_dict(model.conv.state_dict())
    x = torch.randn(2, 1, 9)

    (found,) = reference_of(model)([x])

    with torch.no_grad():
        expected = exact(x.double()) * exact(torch.ones(1, 1, 9).double() * 0.1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert compiler.compile(model, (x,), backend="eager").report.figures


def test_a_model_that_runs_in_one_type_only_is_refused_with_the_reason() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            torch._check(x.dtype == torch.float32, lambda: "only float32 is welcome")
            return x * self.weight

    with pytest.raises(
        compiler.UnverifiableError, match=r"Stubborn does not run in float64, .*only float32 is welcome"
    ):
        compiler.compile(Stubborn().eval(), (torch.ones(2, 3),), backend="eager")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("answer", [0.0, 1.0, math.nan, math.inf, -math.inf])
def test_a_program_is_nan_or_infinite_where_its_model_is(value: float, answer: float) -> None:
    found, model = torch.tensor([1.0, answer]), torch.tensor([1.0, value])

    error, _, bound = _measure(found, model, model.double())

    assert (error <= bound) == (answer == value or (math.isnan(answer) and math.isnan(value)))


def test_what_overflows_in_the_models_type_alone_is_not_judged() -> None:
    found, model = torch.tensor([1.0, 5.0]), torch.tensor([1.0, math.inf])
    exact = torch.tensor([1.0, 1e39], dtype=torch.float64)

    error, _, bound = _measure(found, model, exact)

    assert error <= bound


def test_a_view_that_holds_for_some_strides_only_is_compiled_as_a_reshape() -> None:
    class Attends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
            attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            return attended.transpose(1, 2).reshape(x.shape)

    dims = {"x": {0: Dim(name="batch", max=4), 1: Dim(name="length", max=9)}}

    program = compiler.compile(Attends().eval(), (torch.randn(2, 5, 8),), dynamic=dims, backend="eager")

    operators = [node.operator for node in program.definition.nodes]
    assert operators.count("aten.reshape.default") == 2
    assert not [name for name in operators if "view" in name]
