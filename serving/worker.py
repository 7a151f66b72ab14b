"""One worker: a process that serves one model over HTTP, from a checkpoint folder to a clean exit.

It listens at once, so that health can be asked while the model loads; then the folder is verified and bound, every
bucket is run, and the worker is ready. On SIGTERM or SIGINT it stops being ready, answers what has reached it, and
returns. Torch runs with one thread: workers are the unit of parallelism, and an answer's bits then do not depend on the
machine's core count.

Which folder to serve is told by ``fleet`` or the command line; a worker speaks to no registry.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import prometheus_client
import torch
import uvloop

from serving import weights
from serving.app import App
from serving.batcher import Batcher
from serving.control import build_control
from serving.engine import Engine
from serving.protocol import ModelInfo
from serving.release import open_release
from serving.schedule import BUCKETS
from serving.server import Server, make_server
from serving.service import Loaded, Service
from serving.token import Token
from serving.updater import OpenRelease, Updater
from serving.weights import Slot

WAIT_BOUND_S = 2.0


def serve(
    *,
    model: str,
    folder: Path,
    root: str,
    seal: str,
    version: str,
    listener: socket.socket,
    token: Token | None,
    on_ready: Callable[[], None],
    stop_with_stdin: bool = False,
    wait_bound_s: float = WAIT_BOUND_S,
    open_release: OpenRelease = open_release,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        model: The name in request paths.
        folder: A checkpoint folder with a program attached.
        root, seal: What the checkpoint's must be.
        version: Its number in the registry; answers carry it as ``model_version``.
        listener: A listening socket; closed at the end.
        token: What control calls must carry; None refuses them all.
        on_ready: Called once, when every bucket is warm.
        stop_with_stdin: Stop too when standard input ends, as it does when the parent process dies.
        wait_bound_s: The predicted wait beyond which requests are answered 503.
        open_release: Opens and verifies a checkpoint folder.

    Raises:
        ReleaseRefusedError: The folder does not verify, or cannot be served.
    """
    torch.set_num_threads(1)
    # One more series per counter, which nobody reads.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    worker = _Worker(model=model, token=token, wait_bound_s=wait_bound_s, open_release=open_release)
    main = worker.run(
        folder,
        root=root,
        seal=seal,
        version=version,
        listener=listener,
        on_ready=on_ready,
        stop_with_stdin=stop_with_stdin,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class _Worker:
    """The running of one worker: what is opened here is closed here."""

    def __init__(self, *, model: str, token: Token | None, wait_bound_s: float, open_release: OpenRelease) -> None:
        self._service = Service(model=model)
        self._token = token
        self._wait_bound_s = wait_bound_s
        self._open_release = open_release

    async def run(
        self,
        folder: Path,
        *,
        root: str,
        seal: str,
        version: str,
        listener: socket.socket,
        on_ready: Callable[[], None],
        stop_with_stdin: bool,
    ) -> None:
        stop = _stop_on_signals(stop_with_stdin=stop_with_stdin)
        server = make_server(App(self._service, control=build_control(self._service), token=self._token))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            model, slot = await asyncio.to_thread(self._load, folder, root=root, seal=seal, version=version)
            with Engine(slot, model=model, buckets=BUCKETS) as engine:
                await self._let_in(engine)
                on_ready()
                await stop.wait()
                self._service.is_draining = True
                await _end(server, serving)
        finally:
            await _end(server, serving)

    def _load(self, folder: Path, *, root: str, seal: str, version: str) -> tuple[ModelInfo, Slot]:
        with self._open_release(folder, root=root, seal=seal) as release:
            model = weights.describe(release.program, name=self._service.model, max_rows=BUCKETS[-1])
            return model, weights.build(release, version=version)

    async def _let_in(self, engine: Engine) -> None:
        """Run every bucket, then let requests in."""
        table = await engine.warm()
        metrics = self._service.metrics
        batcher = Batcher(engine, table=table, metrics=metrics, wait_bound_s=self._wait_bound_s)
        updater = Updater(engine, metrics=metrics, open_release=self._open_release)
        self._service.loaded = Loaded(model=engine.model, engine=engine, batcher=batcher, updater=updater)


async def _end(server: Server, serving: asyncio.Task[None]) -> None:
    """Stop listening, close idle connections, and wait for the requests that are being answered."""
    server.should_exit = True
    await serving


def _stop_on_signals(*, stop_with_stdin: bool) -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT (even one inherited as ignored) and the end of standard input set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end, stop)
    return stop


def _stop_at_end(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()
