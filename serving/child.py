"""One worker of a fleet: a port, and the process that serves on it now.

The fleet listens; the process inherits the socket. So a port is taken once, before anything starts, and while a worker
that died is started again, its clients' connections wait in the kernel instead of being refused.

Promises: a process that ends is started again, later each time it ends before it was ready; one that cannot start the
very first time is a StartError instead. No process outlives the fleet: it stops when the pipe on its standard input
closes, even when the fleet was killed. Which folder to serve is asked of the fleet at each start.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from serving.client import Client, Standing
from serving.errors import CallError, StartError, TokenError, UnreachableError
from serving.server import DRAIN_BOUND_S, address
from serving.source import Target
from serving.token import TOKEN_VARIABLE, Token

FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 10.0
STOP_BOUND_S = DRAIN_BOUND_S + 10
CALL_BOUND_S = 600.0  # staging verifies and evaluates all weights
SOURCE_ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A worker process, kept alive.

    Args:
        index: Its number in the fleet.
        listener: A listening socket; its process serves on it.
        model: The model's name.
        token: For its control calls; goes by its file, or by the environment.
        scratch: A folder for its temporary files, emptied before each start.
        say: Hears a line when its process is ready and when it ended.
    """

    def __init__(
        self,
        index: int,
        *,
        listener: socket.socket,
        model: str,
        token: Token,
        scratch: Path,
        say: Callable[[str], object],
    ) -> None:
        self.index = index
        self.url = address(listener)
        self.is_ready = False
        self.pid: int | None = None
        self.starts = 0
        self.problem: str | None = None
        self.standing: Standing | None = None
        self.client = Client(self.url, model=model, token=token, timeout_s=CALL_BOUND_S)
        self._listener = listener
        self._model = model
        self._token = token
        self._scratch = scratch
        self._say = say

    async def keep(self, target: Callable[[], Target], *, on_change: Callable[[], None]) -> None:
        """Run the process, and again whenever it ends, until cancelled; then stop it.

        Args:
            target: What to serve, asked at each start.
            on_change: Called when the process becomes ready and when it ends.

        Raises:
            StartError: It ended before it was ready the first time.
        """
        delay_s = FIRST_DELAY_S
        try:
            while True:
                was_ready = await self._run_once(target(), on_change=on_change)
                if not was_ready and self.starts == 1:
                    raise StartError(
                        f"worker {self.index} on {self.url}",
                        found=str(self.problem),
                        expected="a worker that becomes ready",
                        next_step="Its own message stands above.",
                    )
                delay_s = FIRST_DELAY_S if was_ready else min(2 * delay_s, LONGEST_DELAY_S)
                self._say(f"worker {self.index} {self.problem}; it is started again in {delay_s:g} s")
                await asyncio.sleep(delay_s)
        finally:
            self.client.close()

    def stop_listening(self) -> None:
        """Let go of the port: once the process stops listening too, connections are refused."""
        self._listener.close()

    async def observe(self) -> Standing | None:
        """Ask the worker what it serves; None when it is not ready or does not answer."""
        self.standing = await self.call(self.client.standing) if self.is_ready else None
        return self.standing

    async def call(self, method: Callable[[], Standing]) -> Standing | None:
        """Make a control call in a thread; a failure becomes ``problem`` and None."""
        try:
            standing = await asyncio.to_thread(method)
        except (CallError, TokenError, UnreachableError) as error:
            self.problem = str(error)
            return None
        self.problem = None
        self.standing = standing
        return standing

    async def _run_once(self, target: Target, *, on_change: Callable[[], None]) -> bool:
        """Run one process from start to end; return whether it was ever ready."""
        process = await self._spawn(target)
        assert process.stdout is not None
        try:
            was_ready = bool(await process.stdout.readline())
            if was_ready:
                self.is_ready, self.problem = True, None
                self._say(f"worker {self.index} is ready (pid {self.pid}), with version {target.desired.version}")
                on_change()
                while await process.stdout.readline():
                    pass
            status = await process.wait()
        finally:
            self.is_ready, self.pid, self.standing = False, None, None
            await _stop(process)
        self.problem = f"ended with status {status}"
        on_change()
        return was_ready

    async def _spawn(self, target: Target) -> asyncio.subprocess.Process:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        self.starts += 1
        listener = self._listener.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "serving", "worker"),
            *("--model", self._model, "--folder", str(target.folder), "--root", target.desired.root),
            *("--seal", target.seal, "--version", target.desired.version),
            *("--fd", str(listener), "--stop-with-stdin"),
            *(("--token-file", str(self._token.file)) if self._token.file else ()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(listener,),
            env=self._environment(),
        )
        self.pid = process.pid
        return process

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(SOURCE_ROOT), os.environ.get("PYTHONPATH"))))
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TMPDIR": str(self._scratch)}
        token = {} if self._token.file else {TOKEN_VARIABLE: self._token.value}
        return {**os.environ, **own, **token}


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ask a process to drain, and kill it when it does not end in time."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_BOUND_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
