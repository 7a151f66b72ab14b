"""Networks of usual shapes: how often each pass fires, that they answer right, and that weights swap back exactly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.verification.perturbation import perturb
from recipes import bert
from tests.compiler.families.case import make_wild
from tests.compiler.zoo import models

_IMAGE = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
_TOKENS = torch.randint(1, 50, (2, 12), generator=torch.Generator().manual_seed(0))
AFTER, AHEAD, AFFINE = "fold_batchnorm", "fold_batchnorm_ahead", "expand_batchnorm"

# network → (how it is built, an example, what passes change)
ZOO: dict[str, tuple[Callable[[], nn.Module], Tensor, dict[str, int]]] = {
    "residual": (models.residual, torch.randn(2, 3, 32, 32), {AFTER: 20}),
    "depthwise": (models.depthwise, _IMAGE, {AFTER: 10}),
    "dense": (models.dense, _IMAGE, {AFTER: 4, AFFINE: 4}),
    "hourglass": (models.Hourglass, _IMAGE, {AFTER: 4}),
    "audio": (models.audio, torch.randn(2, 1, 32), {"fold_constants": 2, AFTER: 2}),
    "vision": (models.Vision, _IMAGE, {"fuse_attention": 2, "merge_projections": 2}),
    "decoder": (models.Decoder, _TOKENS, {"fold_constants": 3, "fuse_attention": 2, "merge_projections": 2}),
    "mixer": (models.Mixer, _IMAGE, {AHEAD: 1}),
    "minilm": (bert.published, _TOKENS, {"fold_constants": 1, "merge_projections": 6}),
}
FUSING = ("fold_constants", AFTER, AHEAD, AFFINE, "fuse_attention", "merge_projections")


@pytest.mark.parametrize("name", ZOO)
def test_a_network_is_fused_and_verified_and_its_weights_swap_back(name: str) -> None:
    build, example, fused = ZOO[name]
    torch.manual_seed(0)
    model = build().eval()
    make_wild(model)

    program = compiler.compile(model, (example,), backend="eager")

    assert {each: program.report.count(each) for each in FUSING if program.report.count(each)} == fused
    assert all(figure.passed for figure in program.report.figures)

    memory = program.allocate()
    runner = program.load_runner(memory)
    answers = []
    for state in (model.state_dict(), perturb(model).state_dict(), model.state_dict()):
        program.evaluate(state, memory)
        answers.append(runner(example)[0].clone())
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], answers[1])
