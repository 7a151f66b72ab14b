"""Versions in a real MLflow server: full and as a delta, published and fetched again.

The peer, MLflow's own client with a pickled file, is a script under ``peers``: only ``registry`` imports mlflow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import torch

import ckpt
import registry
from benchmarks.cases.deltas import STEP_SHARE
from benchmarks.cases.weights import bfloat16_weights, body_and_head, stepped
from benchmarks.plan import Call

NAME = "fetched"


@contextmanager
def prepare(*, work: Path, shared: Path, uri: str, size_bytes: int) -> Iterator[Call]:
    """Two checkpoints, published as a full version and a delta on it, and the base as ``torch.save`` writes it."""
    server = registry.Server(uri=uri, home=work / "home")

    def publish() -> None:
        base = bfloat16_weights(size_bytes, seed=0)
        ckpt.save(body_and_head(base), shared / "base")
        ckpt.save(body_and_head(stepped(base, share=STEP_SHARE)), shared / "target")
        torch.save(body_and_head(base), shared / "state.pt")
        for folder in ("base", "target"):
            registry.publish(shared / folder, name=NAME, server=server)

    yield Call(run=publish)


@contextmanager
def publish(*, work: Path, shared: Path, uri: str, as_delta: bool) -> Iterator[Call]:
    """Verified, uploaded, read back, verified again, then visible; as a delta where the base is there already."""
    server, name = registry.Server(uri=uri, home=work / "home"), f"published-{uuid4().hex}"
    if as_delta:
        registry.publish(shared / "base", name=name, server=server)
    made: list[registry.Version] = []
    yield Call(
        run=lambda: made.append(
            registry.publish(shared / ("target" if as_delta else "base"), name=name, server=server)
        ),
        figures=lambda: {"stored_bytes": made[0].stored_bytes},
    )


@contextmanager
def fetch(*, work: Path, shared: Path, uri: str, as_delta: bool) -> Iterator[Call]:
    """Into an empty cache; or the next version, where the cache holds the base. Every byte is proved."""
    server, cache = registry.Server(uri=uri, home=work / "home"), work / "cache"
    if as_delta:
        registry.fetch(f"{NAME}/1", cache=cache, server=server)
    reference = f"{NAME}/{2 if as_delta else 1}"
    stored_bytes = registry.resolve(reference, server=server).stored_bytes
    yield Call(
        run=lambda: registry.fetch(reference, cache=cache, server=server),
        figures=lambda: {"stored_bytes": stored_bytes},
    )
