"""A tiny program that follows the compiler's seam, and a rig: a worker's parts in this process, spoken to over ASGI."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from serving import weights
from serving.app import App
from serving.batcher import Batcher
from serving.control import build_control
from serving.engine import Engine
from serving.errors import ReleaseRefusedError
from serving.schedule import BUCKETS
from serving.service import Loaded, Service
from serving.updater import Updater
from serving.weights import Release

TOKEN = "a-token-of-the-tests"
POISON = 999.0


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: str
    shape: tuple[int | None, ...]


class TinyRunner:
    """logits = x · folded + bias; a row that begins with POISON raises. ``gate`` runs before each call."""

    def __init__(self, constants: Mapping[str, Tensor], gate: Callable[[], None]) -> None:
        self.constants = constants
        self.gate = gate
        self.swap_fails = False

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.gate()
        (x,) = inputs
        if bool((x[:, 0] == POISON).any()):
            raise IndexError("index 999 is out of range")
        return (x @ self.constants["folded"].T + self.constants["bias"],)

    def swap(self, constants: Mapping[str, Tensor]) -> None:
        if self.swap_fails:
            self.swap_fails = False
            raise RuntimeError("the binding failed")
        self.constants = constants


@dataclass
class TinyProgram:
    """x: rows of 4 → logits: rows of 3; folded = weight · scale, bias = bias."""

    digest: str = "sha256:" + "a" * 64
    inputs: tuple[Spec, ...] = (Spec("x", "float32", (None, 4)),)
    outputs: tuple[Spec, ...] = (Spec("logits", "float32", (None, 3)),)
    requires: tuple[Spec, ...] = (
        Spec("weight", "float32", (3, 4)),
        Spec("scale", "float32", (3,)),
        Spec("bias", "float32", (3,)),
    )
    arena_bytes: int = 128
    gate: Callable[[], None] = lambda: None
    evaluated: list[set[str]] = field(default_factory=list)
    runners: list[TinyRunner] = field(default_factory=list)

    def allocate(self, buffer: Any) -> dict[str, Tensor]:
        memory = torch.frombuffer(buffer, dtype=torch.float32, count=32)
        return {"folded": memory[:12].view(3, 4), "bias": memory[16:19]}

    def evaluate(
        self, tensors: Mapping[str, Tensor], out: Mapping[str, Tensor], *, changed: set[str] | None
    ) -> tuple[str, ...]:
        touched = {"weight", "scale", "bias"} if changed is None else changed
        self.evaluated.append(set(touched))
        if touched & {"weight", "scale"}:
            out["folded"].copy_(tensors["weight"] * tensors["scale"][:, None])
        if "bias" in touched:
            out["bias"].copy_(tensors["bias"])
        return tuple(touched)

    def load_runner(self, constants: Mapping[str, Tensor]) -> TinyRunner:
        self.runners.append(TinyRunner(constants, lambda: self.gate()))
        return self.runners[-1]


def tiny_tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {spec.name: torch.randn(spec.shape, generator=generator) for spec in TinyProgram().requires}  # type: ignore[arg-type]


def tiny_root(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors.values():
        digest.update(tensor.numpy().tobytes())
    return f"sha256:{digest.hexdigest()}"


class Shelf:
    """Fake checkpoint folders: path → (tensors, program). ``reading`` is called while a folder is open."""

    def __init__(self) -> None:
        self.folders: dict[Path, tuple[dict[str, Tensor], TinyProgram]] = {}
        self.opened: list[Path] = []
        self.reading: Callable[[], None] = lambda: None

    def put(self, name: str, tensors: dict[str, Tensor], program: TinyProgram | None = None) -> tuple[Path, str]:
        folder = Path("/shelf") / name
        self.folders[folder] = (tensors, program or TinyProgram())
        return folder, tiny_root(tensors)

    @contextmanager
    def open_release(self, folder: Path, root: str) -> Iterator[Release]:
        self.opened.append(folder)
        tensors, program = self.folders[folder]
        if tiny_root(tensors) != root:
            raise ReleaseRefusedError(f"folder '{folder}'", found=tiny_root(tensors), expected=root)
        self.reading()
        yield Release(folder=folder, root=root, program=program, tensors=tensors)


@dataclass
class Rig:
    service: Service
    engine: Engine
    batcher: Batcher
    updater: Updater
    program: TinyProgram
    shelf: Shelf
    http: httpx.AsyncClient
    app: App
    root: str

    def offline(self, tensors: Mapping[str, Tensor], x: Tensor, *, bucket: int) -> Tensor:
        """The offline answer at a bucket: rows padded with zeros, the plain formula."""
        padded = torch.zeros(bucket, 4)
        padded[: len(x)] = x
        return (padded @ (tensors["weight"] * tensors["scale"][:, None]).T + tensors["bias"])[: len(x)]


RigMaker = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def rig() -> RigMaker:
    """Make a rig: ``async with rig() as r``; it serves ``tiny_tensors(1)`` as version 1 of model ``tiny``."""

    @asynccontextmanager
    async def make(*, wait_bound_s: float = 2.0, max_body_bytes: int = 1 << 20) -> AsyncIterator[Rig]:
        shelf, program = Shelf(), TinyProgram()
        folder, root = shelf.put("v1", tiny_tensors(1), program)
        with shelf.open_release(folder, root) as release:
            model = weights.describe(program, name="tiny", max_rows=BUCKETS[-1])
            slot = weights.build(release, version="1")
        service = Service(model="tiny")
        with Engine(slot, model=model, buckets=BUCKETS) as engine:
            table = await engine.warm()
            batcher = Batcher(engine, table=table, metrics=service.metrics, wait_bound_s=wait_bound_s)
            updater = Updater(engine, metrics=service.metrics, open_release=shelf.open_release)
            service.loaded = Loaded(model=model, engine=engine, batcher=batcher, updater=updater)
            app = App(service, control=build_control(service), token=TOKEN, max_body_bytes=max_body_bytes)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
                yield Rig(service, engine, batcher, updater, program, shelf, http, app, root)
            await batcher.drain()

    return make


@pytest.fixture
def tiny() -> Any:
    """The tiny program's names, for tests that need them."""

    class Tiny:
        Program, Runner, Shelf, Spec = TinyProgram, TinyRunner, Shelf, Spec
        tensors, root = staticmethod(tiny_tensors), staticmethod(tiny_root)
        token, poison = TOKEN, POISON
        authorized = {"Authorization": f"Bearer {TOKEN}"}  # noqa: RUF012 - read only

    return Tiny


@pytest.fixture
def play() -> Callable[[Callable[[], Coroutine[Any, Any, None]]], None]:
    """Run a coroutine function to its end, as ``@play`` under a scenario."""

    def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(scenario())

    return run
