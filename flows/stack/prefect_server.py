"""The Prefect server of the stack: SQLite under the state folder."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack.environment import Addresses, inherited
from flows.stack.process import Service, answers


def service(home: Path, addresses: Addresses) -> Service:
    """The server whose API is at ``addresses.prefect``."""
    port = urlsplit(addresses.prefect).port
    return Service(
        name="prefect",
        command=(sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)),
        url=addresses.prefect_ui,
        ready=lambda: answers(f"{addresses.prefect}/health"),
        environment=inherited(home, addresses),
    )
