"""Where things are, read from the environment once, at the edge.

    TREERING_HOME                  state of this machine: cache, ledgers, runs, the local stack (default .treering)
    TREERING_VICTORIAMETRICS_URL   a VictoriaMetrics server to use; without it the embedded store
    MLFLOW_TRACKING_URI            the MLflow server
    PREFECT_API_URL                the Prefect server

``python -m flows env`` prints them for a shell.
"""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def home() -> Path:
    """The state folder of this machine, as an absolute path."""
    return Path(os.environ.get("TREERING_HOME", REPOSITORY / ".treering")).resolve()


def victoria_url() -> str | None:
    """The metric store to use, or None for the embedded one."""
    return os.environ.get("TREERING_VICTORIAMETRICS_URL") or None
