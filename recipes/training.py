"""The training loop that recipes share.

AdamW with a linear warm-up and a cosine decay over the plan's steps, on batches whose order is a function of the seed.
The same model, data, plan, seed and thread count give the same weights, bit for bit. What the loss is, the recipe says.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ingest import Batch, Dataset
from recipes.contract import Plan, Report, Step

WARM_UP = 0.15  # share of the steps; without it the residual MNIST net lost 1 % of accuracy at the same step count
WEIGHT_DECAY = 1e-2

Loss = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]


def fit(model: nn.Module, data: Dataset, *, loss: Loss, plan: Plan, seed: int, report: Report) -> None:
    """Train the model in place.

    Args:
        model: Left in eval mode, with ``requires_grad`` as it was.
        data: Walked epoch after epoch until the plan's steps are done.
        loss: (model, batch) → the scalar to minimise, and the batch's accuracy (scalar, 0..1).
        plan: Steps, learning rate, batch size, and what may change.
        seed: Order of the rows, and dropout.
        report: Hears of every step.
    """
    with _only(model, plan.trainable) as parameters, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        optimiser = torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=WEIGHT_DECAY)
        for step, batch in zip(range(plan.steps), data.batches(plan.batch_rows, seed=seed), strict=False):
            for group in optimiser.param_groups:
                group["lr"] = plan.learning_rate * schedule(step, steps=plan.steps)
            value, accuracy = loss(model, batch)
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            done = Step(
                epoch=batch.position.epoch,
                step=step + 1,
                steps=plan.steps,
                loss=value.item(),
                accuracy=accuracy.item(),
            )
            report(done)


def schedule(step: int, *, steps: int) -> float:
    """The learning rate of a step as a share of its peak: linear warm-up, then half a cosine, never 0."""
    warm_up = min(1.0, (step + 1) / max(1.0, steps * WARM_UP))
    return warm_up * 0.5 * (1 + math.cos(math.pi * step / steps))


def classification(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy and accuracy of logits (rows, classes) against labels (rows,)."""
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return nn.functional.cross_entropy(logits, labels), accuracy


@contextmanager
def _only(model: nn.Module, prefixes: tuple[str, ...]) -> Iterator[list[nn.Parameter]]:
    """The parameters under the prefixes, all others frozen meanwhile.

    A partly trained model stays in eval mode: batch norm in train mode would move its statistics although no gradient
    reaches it, and dropout would train the head on features that serving never sees.
    """
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    chosen = [name for name in before if not prefixes or name.startswith(prefixes)]
    if not chosen:
        raise ValueError(f"no parameter name starts with {prefixes}: the model has {', '.join(before)}")
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in chosen)
        model.train(not prefixes)
        yield [parameter for parameter in model.parameters() if parameter.requires_grad]
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
        model.eval()
