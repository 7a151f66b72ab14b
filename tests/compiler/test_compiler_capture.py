"""What cannot be captured is refused by name, with what to do; what can be is dynamic where it was asked to be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.capture import capture
from compiler.dynamic import trace_sizes
from compiler.passes import Reason


def test_a_model_in_training_mode_is_refused_with_its_modules() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    model[1].train()

    with pytest.raises(compiler.TrainingModeError, match=r"'1'.*model\.eval\(\)") as caught:
        compiler.compile(model, (torch.randn(2, 1, 5, 5),), backend="eager")

    assert caught.value.modules == ("1",)


def test_a_forward_that_trains_its_norm_is_refused_with_the_buffers() -> None:
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return functional.batch_norm(x, self.bn.running_mean, self.bn.running_var, training=True)

    with pytest.raises(compiler.MutationError) as caught:
        compiler.compile(Trains().eval(), (torch.randn(2, 2, 5, 5),), backend="eager")

    assert set(caught.value.targets) == {"bn.running_mean", "bn.running_var"}


def test_an_operator_outside_the_table_is_named() -> None:
    class Sorts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sort(x).values

    with pytest.raises(compiler.UnsupportedOperatorError) as caught:
        compiler.compile(Sorts().eval(), (torch.randn(2, 5),), backend="eager")

    assert caught.value.operator == "aten.sort.default"


def test_a_mask_as_an_index_is_refused_with_the_reason() -> None:
    class Masks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0].sum()

    with pytest.raises(compiler.UnsupportedOperatorError, match=r"index\.Tensor.*how much is found depends on values"):
        compiler.compile(Masks().eval(), (torch.randn(2, 5),), backend="eager")


@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
def test_torchscript_is_refused_with_what_to_do() -> None:
    scripted = torch.jit.script(nn.Linear(2, 3).eval())

    with pytest.raises(compiler.CaptureError, match=r"is TorchScript, expected a module of Python code\. Build"):
        compiler.compile(scripted, (torch.randn(2, 2),), backend="eager")


class Padded(nn.Module):
    """Attention that does not look at padding, with its mask looked up by places, as transformers 5 writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:
        rows, places = torch.arange(tokens.shape[0]), torch.arange(tokens.shape[1])
        looked_up = kept.bool()[rows[:, None, None, None], places[None, None, None, :]]
        asks = places[None, None, :, None] >= 0
        mask = (asks.new_ones((), dtype=torch.bool) & asks & looked_up).expand(-1, 1, tokens.shape[1], -1)
        x = self.embed(tokens)
        heads = (layer(x).unflatten(2, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aoti", marks=pytest.mark.slow)])
def test_a_mask_that_is_looked_up_by_places_is_captured(backend: str) -> None:
    tokens = torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(0))
    kept = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    rows = compiler.Dim(name="rows", max=8)
    model = Padded().eval()

    program = compiler.compile(model, (tokens, kept), dynamic={"tokens": {0: rows}, "kept": {0: rows}}, backend=backend)

    assert {"aten.index.Tensor", "aten.__and__.Tensor"} <= {node.operator for node in program.definition.nodes}
    runner = program.bind(model.state_dict())
    torch.testing.assert_close(runner(tokens[:2], kept[:2])[0], model(tokens[:2], kept[:2]), rtol=1e-4, atol=1e-5)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Cuts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, : int(x[0, 0])]


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Branches(), r"'return x \+ 1 if x.sum\(\) > 0 else x - 1' \(.*test_compiler_capture.py:\d+\)"),
        (Cuts(), r"'return x\[:, : int\(x\[0, 0\]\)\]'"),
        (Chooses(), "cond at"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_control_flow_over_values_is_refused_with_its_line(model: nn.Module, said: str) -> None:
    with pytest.raises(compiler.ControlFlowError, match=said) as caught:
        compiler.compile(model.eval(), (torch.randn(2, 5),), backend="eager")

    assert caught.value.reason is Reason.CONTROL_FLOW


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"y": {0: compiler.Dim(name="batch", max=8)}}, "names input 'y', expected one of input"),
        ({"input": {4: compiler.Dim(name="batch", max=8)}}, "axis 4 of input 'input', which has 4 axes"),
        ({"input": {-4: compiler.Dim(name="batch", max=8)}}, "count axes from 0"),
        (
            {"input": {0: compiler.Dim(name="n", max=8), 2: compiler.Dim(name="n", max=9)}},
            "one name has one range",
        ),
    ],
)
def test_a_dynamic_dimension_that_does_not_fit_is_refused(dynamic: object, message: str) -> None:
    model = nn.Conv2d(1, 2, 3).eval()

    with pytest.raises(compiler.DynamicShapeError, match=message):
        compiler.compile(model, (torch.randn(2, 1, 5, 5),), dynamic=dynamic, backend="eager")


def test_a_dimension_that_the_model_fixes_is_refused() -> None:
    class AddsThree(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0] + torch.arange(3)

    with pytest.raises(compiler.DynamicShapeError, match=r"AddsThree.*batch"):
        compiler.compile(
            AddsThree().eval(),
            (torch.randn(3, 5),),
            dynamic={"x": {0: compiler.Dim(name="batch", max=8)}},
            backend="eager",
        )


@pytest.mark.parametrize(("low", "high"), [(0, 4), (4, 4), (5, 4), (-1, 4)])
def test_a_dimension_needs_a_range(low: int, high: int) -> None:
    with pytest.raises(compiler.DynamicShapeError, match="expected 1 <= min < max"):
        compiler.Dim(name="batch", min=low, max=high)


def test_a_trace_never_sits_at_one_nor_twice_at_a_size() -> None:
    dims = [compiler.Dim(name="batch", max=64), compiler.Dim(name="length", max=64), compiler.Dim(name="pair", max=2)]

    assert trace_sizes(dims) == {"batch": 3, "length": 5, "pair": 2}


def test_two_dynamic_dimensions_of_two_inputs_work_together() -> None:
    class Scores(nn.Module):
        def forward(self, queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
            scores = torch.matmul(queries, keys.transpose(1, 2))
            return {"weights": scores.softmax(-1), "best": scores.argmax(-1)}

    batch, length = compiler.Dim(name="batch", max=8), compiler.Dim(name="length", max=16)
    inputs = (torch.randn(1, 4, 6), torch.randn(1, 3, 6))

    program = compiler.compile(
        Scores().eval(), inputs, dynamic={"queries": {0: batch}, "keys": {0: batch, 1: length}}, backend="eager"
    )

    assert [spec.name for spec in program.inputs] == ["queries", "keys"]
    assert [(spec.name, spec.dtype, spec.shape, spec.dims) for spec in program.outputs] == [
        ("weights", "float32", (None, 4, None), ("batch", None, "length")),
        ("best", "int64", (None, 4), ("batch", None)),
    ]
    weights, best = program.bind({})(torch.randn(5, 4, 6), torch.randn(5, 9, 6))
    assert weights.shape == (5, 4, 9)
    assert best.shape == (5, 4)


def test_a_size_computed_from_a_dynamic_one_is_stated_as_unknown() -> None:
    class Flattens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1)

    program = compiler.compile(
        Flattens().eval(), (torch.randn(2, 5),), dynamic={"x": {0: compiler.Dim(name="batch", max=8)}}, backend="eager"
    )

    assert program.outputs[0].shape == (None,)
    assert program.bind({})(torch.ones(3, 5))[0].shape == (15,)


def test_buffers_outside_the_state_dict_and_lifted_tensors_become_literals(
    residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    graph = capture(residual_net(), (images[:2],))

    assert sorted(graph.literals) == ["lifted_tensor_0", "temperature"]
    assert graph.literals["temperature"].data == torch.tensor([0.5]).numpy().tobytes()


def test_the_model_is_read_and_never_changed(residual_net: Callable[..., nn.Module], images: Tensor) -> None:
    model = residual_net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    compiler.compile(model, (images[:2],), backend="eager")

    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training


def test_progress_is_told_in_order(residual_net: Callable[..., nn.Module], images: Tensor) -> None:
    told: list[tuple[str, float]] = []

    compiler.compile(residual_net(), (images[:2],), backend="eager", progress=lambda *step: told.append(step))

    assert [stage for stage, _ in told] == ["capture", "fold", "build", "verify", "done"]
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-1][1] == 1.0
