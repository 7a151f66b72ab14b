"""What the serving tests stand on.

``rig``: a worker's parts in this process over a tiny program that follows the compiler's seam, spoken to over ASGI.
``shop``: real checkpoints of a real program, with an oracle. ``launch``, ``start_worker``: real processes.
"""

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

import ckpt
import compiler
from serving import weights
from serving.app import App
from serving.batcher import Batcher
from serving.control import build_control
from serving.engine import Engine
from serving.errors import ReleaseRefusedError
from serving.load import Shot, run_load
from serving.schedule import BUCKETS
from serving.service import Loaded, Service
from serving.source import FolderSource
from serving.token import Token
from serving.updater import Step, Updater
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

    @property
    def bound(self) -> Mapping[str, Tensor]:
        return self.constants

    def prepare(self, constants: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return constants

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

    def seal(self, folder: Path) -> str:
        tensors, program = self.folders[folder]
        return f"sha256:{hashlib.sha256(f'{tiny_root(tensors)} {program.digest}'.encode()).hexdigest()}"

    def put(self, name: str, tensors: dict[str, Tensor], program: TinyProgram | None = None) -> tuple[Path, str]:
        folder = Path("/shelf") / name
        self.folders[folder] = (tensors, program or TinyProgram())
        return folder, tiny_root(tensors)

    @contextmanager
    def open_release(self, folder: Path, *, root: str, seal: str) -> Iterator[Release]:
        self.opened.append(folder)
        tensors, program = self.folders[folder]
        for found, expected in ((tiny_root(tensors), root), (self.seal(folder), seal)):
            if found != expected:
                raise ReleaseRefusedError(f"folder '{folder}'", found=found, expected=expected)
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

    async def stage(self, folder: Path, *, root: str, version: str) -> Step:
        """Stage a folder of the shelf by the seal that it has."""
        return await self.updater.stage(folder, root=root, seal=self.shelf.seal(folder), version=version)

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
        with shelf.open_release(folder, root=root, seal=shelf.seal(folder)) as release:
            model = weights.describe(program, name="tiny", max_rows=BUCKETS[-1])
            slot = weights.build(release, version="1")
        service = Service(model="tiny")
        with Engine(slot, model=model, buckets=BUCKETS) as engine:
            table = await engine.warm()
            batcher = Batcher(engine, table=table, metrics=service.metrics, wait_bound_s=wait_bound_s)
            updater = Updater(engine, metrics=service.metrics, open_release=shelf.open_release)
            service.loaded = Loaded(model=model, engine=engine, batcher=batcher, updater=updater)
            app = App(service, control=build_control(service), token=Token(TOKEN), max_body_bytes=max_body_bytes)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
                yield Rig(service, engine, batcher, updater, program, shelf, http, app, root)

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


class Net(torch.nn.Module):
    """A convolution with batch normalisation, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4 * 6 * 6, 5)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.bn(self.conv(image))).flatten(1))
        return logits


def net_state(version: int) -> dict[str, Tensor]:
    """Version 2 differs from 1 in the head alone, 3 in everything."""
    torch.manual_seed(1)
    net = Net()
    torch.nn.init.uniform_(net.bn.running_var, 0.5, 2.0)
    if version == 2:
        torch.manual_seed(2)
        torch.nn.init.normal_(net.head.weight)
    if version == 3:
        torch.manual_seed(3)
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return dict(net.state_dict())


@dataclass
class Shop:
    """Real released versions 1, 2, 3 of ``mini`` in the layout of ``FolderSource``, and the oracle."""

    folder: Path
    net: Net
    roots: dict[str, str]
    seals: dict[str, str]
    images: Tensor
    oracle: dict[str, list[dict[int, bytes]]]  # root → row → bucket → bytes of the logits

    def checkpoint(self, version: str) -> Path:
        return self.folder / "mini" / version

    def is_exact(self, reply: Any, rows: range) -> bool:
        logits = reply.outputs["output"]
        return all(
            logits[place].tobytes() == self.oracle[reply.root][row][reply.bucket] for place, row in enumerate(rows)
        )


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Compile once (eager backend) and release three checkpoints of one program."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("shop")
    net = Net().eval()
    net.load_state_dict(net_state(1))
    dim = compiler.Dim(name="rows", max=BUCKETS[-1])
    program = compiler.compile(net, (torch.randn(2, 1, 6, 6),), dynamic={"image": {0: dim}}, backend="eager")
    files = program_files(program.save(folder / "program"))
    images = torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(7))
    roots, seals, oracle = {}, {}, {}
    for version in (1, 2, 3):
        state = net_state(version)
        path = folder / "mini" / str(version)
        path.parent.mkdir(exist_ok=True)
        manifest = ckpt.save(state, path, attachments=files)
        roots[str(version)], seals[str(version)] = manifest.root, manifest.seal
        oracle[manifest.root] = offline(program.bind(state), images)
    FolderSource(folder).point("mini", alias="champion", version="1")
    yield Shop(folder, net, roots, seals, images, oracle)
    torch.set_num_threads(threads)


def program_files(saved: Path) -> dict[str, Path]:
    """The files of a saved program, as attachments."""
    return {f"program/{file.relative_to(saved)}": file for file in saved.rglob("*") if file.is_file()}


@pytest.fixture(scope="session")
def other_program(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved program with the inputs, outputs and tensors of the shop's, and another function."""

    class Other(Net):
        def forward(self, image: Tensor) -> Tensor:
            logits: Tensor = self.head(torch.tanh(self.bn(self.conv(image))).flatten(1))
            return logits

    dim = compiler.Dim(name="rows", max=BUCKETS[-1])
    program = compiler.compile(Other().eval(), (shop.images[:2],), dynamic={"image": {0: dim}}, backend="eager")
    return program.save(tmp_path_factory.mktemp("other") / "program")


@pytest.fixture
def exchange(other_program: Path, tmp_path: Path) -> Callable[[Path], str]:
    """Put the other program into a checkpoint folder, manifest and all: valid, of the same root. Returns its seal."""

    def put(folder: Path) -> str:
        made = tmp_path / "exchanged"
        manifest = ckpt.save(ckpt.load(folder, mmap=False), made, attachments=program_files(other_program))
        assert manifest.root == ckpt.read_manifest(folder).root
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
        made.rename(folder)
        return manifest.seal

    return put


def offline(runner: Any, images: Tensor) -> list[dict[int, bytes]]:
    """Each row alone in a batch of each bucket's size."""
    table = []
    for image in images:
        answers = {}
        for bucket in BUCKETS:
            batch = torch.zeros(bucket, 1, 6, 6)
            batch[0] = image
            answers[bucket] = runner(batch)[0][0].numpy().tobytes()
        table.append(answers)
    return table


class Process:
    """A child of the tests: its first lines are read, and it is stopped by its id."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TREERING_TOKEN": TOKEN}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "serving", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what was written to standard error."""
        _, errors = self.popen.communicate(timeout=60)
        return self.popen.returncode, errors

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.popen.send_signal(number)
        return self.end()


def kill(process: Process) -> None:
    if process.popen.poll() is None:
        process.popen.kill()
    process.popen.communicate()


@pytest.fixture
def launch() -> Iterator[Callable[..., Process]]:
    """Start ``python -m serving ...``; what still runs at the end of the test is killed."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    yield start
    for process in started:
        kill(process)


def worker_arguments(shop: Shop, *more: str) -> tuple[str, ...]:
    return (
        *("worker", "--model", "mini", "--folder", str(shop.checkpoint("1")), "--root", shop.roots["1"]),
        *("--seal", shop.seals["1"], "--version", "1", "--port", "0", *more),
    )


def url_of(process: Process) -> str:
    """Wait until a worker is ready; return where it serves."""
    words = process.line().split()
    assert words, process.end()
    return words[-1]


@pytest.fixture
def start_worker(launch: Callable[..., Process], shop: Shop) -> Callable[..., tuple[Process, str]]:
    """Start a worker on version 1 and wait until it is ready; returns it and its URL."""

    def start(*more: str) -> tuple[Process, str]:
        process = launch(*worker_arguments(shop, *more))
        return process, url_of(process)

    return start


@pytest.fixture(scope="module")
def worker_url(shop: Shop) -> Iterator[str]:
    """A worker that the tests of a module share; whatever they do to it, it must go on answering exactly."""
    process = Process(*worker_arguments(shop))
    yield url_of(process)
    kill(process)


@pytest.fixture
def under_load(shop: Shop) -> Callable[..., AbstractContextManager[list[Shot]]]:
    """Send requests for ``row_groups`` of the shop's images while a block runs; its shots are there after the block."""

    @contextmanager
    def run(urls: list[str], row_groups: list[range], *, clients: int) -> Iterator[list[Shot]]:
        requests = [{"image": shop.images[rows.start : rows.stop].numpy()} for rows in row_groups]
        stop, shots = threading.Event(), []
        bounds = {"max_requests": 1_000_000, "max_seconds": 250.0}
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(run_load, urls, model="mini", requests=requests, clients=clients, stop=stop, **bounds)
            try:
                yield shots
            finally:
                stop.set()
            shots.extend(load.result())

    return run
