"""The MLflow server of the stack: SQLite and proxied artifacts under the state folder, one worker, no job runner."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack.environment import Addresses, inherited
from flows.stack.process import Service, answers


def service(home: Path, addresses: Addresses) -> Service:
    """The server at ``addresses.mlflow``."""
    folder = home / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    port = urlsplit(addresses.mlflow).port
    # Its job runner would start seven more processes of 240 MB each (measured with 3.17.2).
    return Service(
        name="mlflow",
        command=(
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")),
        ),
        url=addresses.mlflow,
        ready=lambda: answers(f"{addresses.mlflow}/health"),
        environment=inherited(home, addresses, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
    )
