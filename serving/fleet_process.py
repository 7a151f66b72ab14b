"""The fleet's process: ports taken, workers kept, status and control calls over HTTP, a clean end.

    GET  /            who serves what: the same document as the status file
    POST /converge    reconcile now; answers when every worker serves what the alias names, or says why not
    POST /undo        {"root": suspect}: take all workers back

POST needs the bearer token. Ports are taken and the alias is resolved and fetched before any worker starts, so that
what is wrong with them is an error at once. On SIGTERM or SIGINT the workers drain, and the process returns.
"""

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from serving.child import Child
from serving.control import Digest, answer_errors
from serving.errors import StartError
from serving.fleet import Fleet
from serving.guard import Guarded
from serving.protocol import Json
from serving.server import Server, make_server
from serving.source import Source
from serving.token import Token

STATUS_FILE = "status.json"


class UndoCall(BaseModel):
    """Take all workers back if ``root`` is what they serve."""

    model_config = ConfigDict(extra="forbid")
    root: Digest


def run_fleet(
    *,
    source: Source,
    name: str,
    alias: str,
    listener: socket.socket,
    worker_listeners: Sequence[socket.socket],
    token: Token | None,
    state_folder: Path,
    say: Callable[[str], object],
) -> None:
    """Serve ``name@alias`` with one worker for each listener, until SIGTERM or SIGINT.

    Args:
        source: Resolves and fetches.
        name, alias: What to serve.
        listener: Where the fleet's own status is served.
        worker_listeners: Where the workers serve; closed at the end.
        token: For control calls of the fleet and of its workers; None refuses those from outside.
        state_folder: For ``status.json`` and the workers' temporary files.
        say: Hears a line when a worker is ready and when one ended.

    Raises:
        SourceError: The alias cannot be resolved or fetched.
        StartError: The state folder cannot be made, or a worker ended before it was ever ready.
    """
    first = source.fetch(source.resolve(name, alias))
    state_folder = _make_folder(state_folder)
    worker_token = token or Token(secrets.token_urlsafe(32))
    children = [
        Child(index, listener=worker, model=name, token=worker_token, scratch=state_folder / f"worker-{index}", say=say)
        for index, worker in enumerate(worker_listeners)
    ]
    status_file = state_folder / STATUS_FILE
    fleet = Fleet(children, source=source, name=name, alias=alias, first=first, status_file=status_file)
    server = make_server(Guarded(build_fleet_app(fleet), token=token, paths=("/converge", "/undo")))
    asyncio.run(_run(fleet, children=children, server=server, listener=listener))


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"state folder '{folder}'", found=str(error), expected="a folder to write to") from error
    return folder.resolve()


def build_fleet_app(fleet: Fleet) -> FastAPI:
    """Make the fleet's HTTP face; the token is checked in front of it."""
    app = FastAPI(title="Treering fleet", redirect_slashes=False)
    answer_errors(app)

    @app.get("/")
    async def status() -> Json:
        return fleet.status()

    @app.post("/converge")
    async def converge() -> Json:
        return await fleet.converge()

    @app.post("/undo")
    async def undo(call: UndoCall) -> Json:
        return await fleet.undo(call.root)

    return app


async def _run(fleet: Fleet, *, children: Sequence[Child], server: Server, listener: socket.socket) -> None:
    """Run everything until a signal comes or something fails, then end it in order: polling, workers, HTTP."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    following = asyncio.create_task(fleet.follow())
    keeping = [asyncio.create_task(child.keep(lambda: fleet.target, on_change=fleet.note_change)) for child in children]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({stopping, following, serving, *keeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for child in children:
            child.stop_listening()
        for task in (stopping, following, *keeping):
            task.cancel()
        await asyncio.gather(stopping, following, *keeping, return_exceptions=True)
        server.should_exit = True
        await serving
    for task in done:
        task.result()
