"""The VictoriaMetrics server of the stack, where the program is installed."""

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack.environment import Addresses, inherited
from flows.stack.process import Service, answers

PROGRAM = "victoria-metrics"


def installed() -> bool:
    """Whether the server can be started; otherwise the monitor keeps its window in memory."""
    return shutil.which(PROGRAM) is not None


def service(home: Path, addresses: Addresses) -> Service:
    """The server at ``addresses.victoria``."""
    url = addresses.victoria
    assert url is not None, "asked for only where it is used"
    folder = home / "victoria-metrics"
    folder.mkdir(parents=True, exist_ok=True)
    # Without the first flag the last 30 s stay hidden from queries.
    return Service(
        name=PROGRAM,
        command=(
            *(PROGRAM, "-search.latencyOffset=1ms", "-retentionPeriod=100y", f"-storageDataPath={folder}"),
            *(f"-httpListenAddr=127.0.0.1:{urlsplit(url).port}", "-memory.allowedBytes=200MB"),
        ),
        url=url,
        ready=lambda: answers(f"{url}/health"),
        environment=inherited(home, addresses),
    )
