"""Where things are, read from the environment once, at the edge.

    TREERING_HOME                  state of this machine: cache, ledgers, runs, the local stack (default .treering)
    TREERING_VICTORIAMETRICS_URL   a VictoriaMetrics server to use; without it the embedded store
    TREERING_VICTORIAMETRICS_USERNAME, TREERING_VICTORIAMETRICS_PASSWORD   where it asks for them
    TREERING_PATIENCE_S            how long a flow waits for a server that is away (set for flow runs of the stack)
    MLFLOW_TRACKING_URI            the MLflow server
    PREFECT_API_URL                the Prefect server

``python -m flows env`` prints them for a shell.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def home() -> Path:
    """The state folder of this machine, as an absolute path; an empty variable names none."""
    return Path(os.environ.get("TREERING_HOME") or REPOSITORY / ".treering").expanduser().resolve()


def victoria_url() -> str | None:
    """The metric store to use, or None for the embedded one."""
    return os.environ.get("TREERING_VICTORIAMETRICS_URL") or None


def victoria_auth(environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """User and password of the metric store, or None."""
    user = environment.get("TREERING_VICTORIAMETRICS_USERNAME")
    return (user, environment.get("TREERING_VICTORIAMETRICS_PASSWORD", "")) if user else None


def stack_name(folder: Path) -> str:
    """What a state folder is called on servers that several share: ``treering-`` and 8 hex of host and path."""
    return "treering-" + hashlib.sha256(f"{platform.node()}:{folder}".encode()).hexdigest()[:8]


def patience_s() -> float:
    """How long to wait for a server that is away."""
    return float(os.environ.get("TREERING_PATIENCE_S", "0"))
