"""A change of anything that a graph may come to hold is another fingerprint; what is not understood has none."""

import copy
import functools
import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compiler.fingerprint import fingerprint
from compiler.surroundings import UnfathomableError
from compiler.verification.perturbation import perturb

FACTOR = 2.0
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def helper(x: Tensor) -> Tensor:
    return x * FACTOR


def other_helper(x: Tensor) -> Tensor:
    return x * 3.0


def of_depth(depth: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x**depth


def handed(ops: types.ModuleType, x: Tensor) -> Tensor:
    """Says which function of a module it is that another function hands over."""
    result: Tensor = ops.shifted(x)
    return result


@functools.cache
def table() -> float:
    return math.sqrt(4)


ops = types.ModuleType("own_ops")
exec("LIMIT = 4.0\ndef shifted(x):\n    return x.clamp(max=LIMIT)", vars(ops))


class Curve:
    """No module, with an attribute."""

    __slots__ = ("bend",)

    def __init__(self, bend: float) -> None:
        self.bend = bend

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.bend


class Net(nn.Module):
    """A constant of each kind that a graph may come to hold."""

    bias = 0.25

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.scale = 0.5
        self.power = of_depth(2)
        self.curve = Curve(1.5)
        self.places: list[Any] = [1, {"deep": 2}]
        self.line = torch.ones(5)
        self.register_buffer("shift", torch.ones(5), persistent=False)
        nn.init.normal_(self.first.weight, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.power(functional.relu(self.norm(self.first(x)))) * self.scale + self.shift * self.line
        x = self.curve(handed(ops, x)) * table()
        result: Tensor = self.method(helper(x)) + self.places[0] + self.places[1]["deep"]
        return result

    def method(self, x: Tensor) -> Tensor:
        return x - self.bias


def patched(self: Any, x: Tensor) -> Tensor:
    return x - 2 * Net.bias


def ready() -> Net:
    return Net().eval()


def put(path: str, value: Any) -> Callable[[Net, pytest.MonkeyPatch], object]:
    """Assigns to an attribute of the model, by its path."""
    *parents, name = path.split(".")
    return lambda net, patch: setattr(functools.reduce(getattr, parents, net), name, value)


def write(path: str, index: Any, value: Any) -> Callable[[Net, pytest.MonkeyPatch], object]:
    """Writes into an object that is an attribute of the model."""
    return lambda net, patch: getattr(net, path).__setitem__(index, value)


def globally(name: str, value: Any) -> Callable[[Net, pytest.MonkeyPatch], object]:
    return lambda net, patch: patch.setitem(globals(), name, value)


CHANGES: dict[str, Callable[[Net, pytest.MonkeyPatch], object]] = {
    "an attribute": put("scale", 0.75),
    "an attribute's type": put("scale", 1),
    "what a closure holds": put("power", of_depth(3)),
    "a value deep inside": write("places", 1, {"deep": 3}),
    "a slot": put("curve.bend", 2.5),
    "a buffer that no state dict has": write("shift", 2, 7.0),
    "a tensor that is no buffer": write("line", 2, 7.0),
    "an epsilon": put("norm.eps", 1e-2),
    "training": lambda net, patch: net.norm.train(),
    "a buffer that is kept": lambda net, patch: net.register_buffer("shift", torch.ones(5)),
    "a method of the instance": lambda net, patch: setattr(net, "method", types.MethodType(patched, net)),
    "a method of the class": lambda net, patch: patch.setattr(Net, "method", patched),
    "an attribute of the class": lambda net, patch: patch.setattr(Net, "bias", 1.0),
    "a helper": globally("helper", other_helper),
    "a helper's code": lambda net, patch: patch.setattr(helper, "__code__", other_helper.__code__),
    "a helper's default": lambda net, patch: patch.setattr(helper, "__defaults__", (X,)),
    "a global": globally("FACTOR", 2.5),
    "what is cached": lambda net, patch: patch.setattr(table.__wrapped__, "__code__", (lambda: 3.0).__code__),
    "a function of a module": lambda net, patch: patch.setattr(ops, "shifted", other_helper),
    "a constant of a module": lambda net, patch: patch.setattr(ops, "LIMIT", 5.0),
    "torch's function under another name": lambda net, patch: patch.setattr(functional, "relu", functional.gelu),
    "a method of torch's layer": lambda net, patch: patch.setattr(nn.Linear, "forward", patched),
    "torch's method for another": lambda net, patch: patch.setattr(nn.Linear, "forward", nn.Identity.forward),
    "a layer": put("first", nn.Linear(4, 5, bias=False)),
    "a layer's class": put("norm", nn.Identity()),
    "a name": lambda net, patch: net.add_module("last", nn.Identity()),
    "a tie": lambda net, patch: setattr(net.norm, "bias", net.norm.weight),
    "memory that is shared": lambda net, patch: setattr(net.norm, "bias", nn.Parameter(net.norm.weight.detach())),
    "gradients that are wanted": lambda net, patch: net.first.requires_grad_(False),
    "a dtype": lambda net, patch: net.double(),
    "a layout": put("first.weight", nn.Parameter(torch.zeros(4, 5).t())),
    "the default dtype": lambda net, patch: torch.set_default_dtype(torch.float64),
    "whether gradients are recorded": lambda net, patch: torch.set_grad_enabled(False),
}


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


@pytest.mark.usefixtures("_torch_as_it_was")
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_one_thing_is_another_fingerprint(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = ready()
    before = fingerprint(net, X)

    CHANGES[what](net, monkeypatch)

    assert fingerprint(net, X) != before


@pytest.mark.parametrize("other", [X.double(), X[:2], X.t().contiguous().t(), X.clone().requires_grad_()])
def test_inputs_of_another_form_are_another_fingerprint(other: Tensor) -> None:
    net = ready()

    assert fingerprint(net, other) != fingerprint(net, X)


def test_other_weights_another_copy_and_other_input_values_are_the_same_fingerprint() -> None:
    net = ready()

    assert len({fingerprint(each, X) for each in (net, copy.deepcopy(net), perturb(net), ready())}) == 1
    assert fingerprint(net, X + 1) == fingerprint(net, X)


def test_tracing_changes_no_fingerprint() -> None:
    """It imports parts of torch that put wrappers around others."""
    net = ready()
    before = fingerprint(net, X)

    torch.export.export(net, (X,))

    assert fingerprint(net, X) == before


def says_import(x: Tensor) -> Tensor:
    import os

    return x * len(os.sep)


def says_eval(x: Tensor) -> Tensor:
    result: Tensor = eval("x * 2")
    return result


def by_text(x: Tensor) -> Tensor:
    result: Tensor = getattr(ops, "shif" + "ted")(x)
    return result


def by_chance(x: Tensor) -> Tensor:
    return x * random.random()


def with_modules(x: Tensor) -> Tensor:
    return x * len(sys.modules)


class Tagged(nn.Parameter):
    """A class of tensor that may answer operators in its own way."""


UNKNOWN: dict[str, tuple[str, Callable[[Net, pytest.MonkeyPatch], object]]] = {
    "hooks": ("first._forward_hooks: hooks", lambda net, patch: net.first.register_forward_hook(lambda *given: None)),
    "hooks before": (
        "_forward_pre_hooks: hooks",
        lambda net, patch: net.register_forward_pre_hook(lambda *given: None),
    ),
    "hooks of the state dict": (
        "_state_dict_hooks: hooks",
        lambda net, patch: net._register_state_dict_hook(lambda *given: None),
    ),
    "a hook of a weight": (
        "first.weight: hooks",
        lambda net, patch: net.first.weight.register_hook(lambda gradient: gradient),
    ),
    "a parametrised module, which has hooks": (
        "first._load_state_dict_pre_hooks: hooks",
        lambda net, patch: _weight_norm(net),
    ),
    "state in C": ("clock: an object of torch", put("clock", torch.Generator())),
    "state in C, under Python": ("clock: an object of random.Random, with state in C", put("clock", random.Random(0))),
    "chance": ("the module random", put("power", by_chance)),
    "a sparse tensor": ("sparse: a tensor", put("sparse", torch.eye(3).to_sparse())),
    "a tensor of another class": ("weight: a tensor of Tagged", put("first.weight", Tagged(torch.ones(5, 4)))),
    "code that imports": ("code that says import", put("power", says_import)),
    "code that evaluates": ("code that says eval", put("power", says_eval)),
    "a name that is put together": ("own_ops: a module, beside code that says getattr", put("power", by_text)),
    "what the interpreter knows": ("the module sys", put("power", with_modules)),
    "torch with another's function": (
        "relu: replaced by code that is not torch's",
        lambda net, patch: patch.setattr(functional, "relu", other_helper),
    ),
}


def _weight_norm(net: Net) -> None:
    nn.utils.parametrizations.weight_norm(net.first)


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_understood_is_refused_by_place(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, change = UNKNOWN[what]
    net = ready()
    change(net, monkeypatch)

    with pytest.raises(UnfathomableError, match=place):
        fingerprint(net, X)


def test_a_mode_of_torch_is_refused() -> None:
    with torch.device("meta"), pytest.raises(UnfathomableError, match="a mode"):
        fingerprint(ready(), X)
