"""A training that goes on from a checkpoint is, bit for bit, the one that never stopped."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler

import ckpt
from tests.ckpt.equality import same

STEPS, STOP = 7, 3
Made = tuple[Optimizer, Any]


def adamw(model: nn.Module) -> Made:
    body, head = list(model.parameters())[:-2], list(model.parameters())[-2:]
    groups: list[dict[str, Any]] = [{"params": body}, {"params": head, "lr": 3e-2, "weight_decay": 0.0}]
    optimizer = AdamW(groups, lr=1e-2, amsgrad=True)
    return optimizer, lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-2, 3e-2], total_steps=STEPS)


def sgd(model: nn.Module) -> Made:
    optimizer = SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    decay = lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    return optimizer, lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[2])


def plateau(model: nn.Module) -> Made:
    optimizer = SGD(model.parameters(), lr=1e-2)
    return optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)


class Training:
    """A network with buffers and dropout, data augmented by three generators of random numbers, a scaled loss."""

    def __init__(self, optimizer: Callable[[nn.Module], Made]) -> None:
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3)
        ).to(memory_format=torch.channels_last)
        self.optimizer, self.scheduler = optimizer(self.model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.order = np.random.default_rng(5)
        self.step = 0

    def run(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            rows = torch.from_numpy(self.order.standard_normal((8, 1, 8, 8)).astype(np.float32))
            rows = rows * random.uniform(0.9, 1.1) + 0.1 * torch.randn_like(rows)
            loss: Tensor = nn.functional.cross_entropy(self.model(rows), torch.arange(8) % 3)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step(*([loss.item()] if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau) else []))
            self.step += 1
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "random": {
                "torch": torch.get_rng_state(),
                "python": random.getstate(),
                "order": self.order.bit_generator.state,
            },
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        torch.set_rng_state(state["random"]["torch"])
        random.setstate(state["random"]["python"])
        self.order.bit_generator.state = state["random"]["order"]


def seeded(optimizer: Callable[[nn.Module], Made], seed: int) -> Training:
    torch.manual_seed(seed)
    random.seed(seed)
    return Training(optimizer)


@pytest.mark.parametrize("optimizer", [adamw, sgd, plateau])
@pytest.mark.parametrize("background", [False, True], ids=["save", "save_async"])
def test_a_resumed_run_is_the_run_that_never_stopped(
    optimizer: Callable[[nn.Module], Made], background: bool, tmp_path: Path
) -> None:
    whole = seeded(optimizer, 0)
    losses = whole.run(STEPS)

    first = seeded(optimizer, 0)
    begun = first.run(STOP)
    if background:
        pending = ckpt.save_async(first.state(), tmp_path / "c")
        first.run(1)  # the state goes on while it is written
        pending.result()
    else:
        ckpt.save(first.state(), tmp_path / "c")
    second = seeded(optimizer, 1)
    second.resume(ckpt.load(tmp_path / "c"))
    ended = second.run(STEPS - STOP)

    assert begun + ended == losses
    assert same(second.state(), whole.state())
    assert ckpt.save(second.state(), tmp_path / "a").root == ckpt.save(whole.state(), tmp_path / "b").root
