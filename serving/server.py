"""HTTP listening, the same for a worker and a fleet: a port taken early, and uvicorn without its signal handlers.

uvicorn would put handlers of its own over the process's and stop listening at the first signal; here the process that
owns the server says when: a worker is first not ready, a fleet first drains its workers.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from serving.errors import PortInUseError

HOST = "127.0.0.1"
BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that it is they who close
DRAIN_BOUND_S = 30


class Server(uvicorn.Server):
    """uvicorn, stopped by ``should_exit`` alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield


def make_server(app: Any) -> Server:
    """Make a server for an ASGI application; serve it with ``await server.serve(sockets=[listener])``."""
    return Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_BOUND_S,
        )
    )


def listen(port: int) -> socket.socket:
    """Listen on a port of this machine; 0 takes a free one.

    Raises:
        PortInUseError: Another process listens there, or the port may not be taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortInUseError(
            f"port {port} of {HOST}",
            found=os.strerror(error.errno or 0),
            expected="a free port",
            next_step="Stop what listens there, or choose another port.",
        ) from error
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()
    return f"http://{host}:{port}"
