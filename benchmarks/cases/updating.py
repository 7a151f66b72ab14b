"""New weights for a model that serves: staged beside it and flipped, against loading a state dict in place.

Three versions take turns, so that every update is read and built; a return to the version before the live one would
find it still in memory.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import torch

import ckpt
from benchmarks.cases.releases import MAX_ROWS, VERSIONS, build_model
from benchmarks.plan import Call
from serving import weights
from serving.engine import Engine
from serving.metrics import Metrics
from serving.release import open_release
from serving.updater import Updater


@contextmanager
def hot_update(*, work: Path, shared: Path, updates: int) -> Iterator[Call]:
    """Verify by SHA-256, build beside the live weights, flip between two batches."""
    manifests = {number: ckpt.read_manifest(shared / number) for number in VERSIONS}
    first = manifests[VERSIONS[0]]
    with open_release(shared / VERSIONS[0], root=first.root, seal=first.seal) as release:
        described = weights.describe(release.program, name="model", max_rows=MAX_ROWS)
        slot = weights.build(release, version=VERSIONS[0])
    pauses_s: list[float] = []

    async def update(updater: Updater) -> None:
        for number in islice(cycle(VERSIONS), 1, updates + 1):
            made = manifests[number]
            await updater.stage(shared / number, root=made.root, seal=made.seal, version=number)
            pauses_s.append((await updater.flip(made.root)).seconds)

    with Engine(slot, model=described, buckets=(1, MAX_ROWS)) as engine, asyncio.Runner() as runner:
        updater = Updater(engine, metrics=Metrics(model="model"), open_release=open_release)
        yield Call(run=lambda: runner.run(update(updater)), units=updates, figures=lambda: _pause(pauses_s))


@contextmanager
def load_in_place(*, work: Path, shared: Path, model: str, updates: int) -> Iterator[Call]:
    """Read with torch, copy into the eager module; no request can be answered during the copy."""
    live = build_model(model)
    pauses_s: list[float] = []

    def update() -> None:
        for number in islice(cycle(VERSIONS), 1, updates + 1):
            state = torch.load(shared / f"{number}.pt", weights_only=True)
            started_s = time.perf_counter()
            live.load_state_dict(state)
            pauses_s.append(time.perf_counter() - started_s)

    yield Call(run=update, units=updates, figures=lambda: _pause(pauses_s))


def _pause(pauses_s: list[float]) -> dict[str, float]:
    return {"pause_us": median(pauses_s) * 1e6, "longest_pause_us": max(pauses_s) * 1e6}
