"""MLflow's own client with the file that ``torch.save`` wrote: upload and download, nothing verified.

Given to ``python -c`` by ``benchmarks.running``: the package itself must not import mlflow.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.tracking import MlflowClient

from benchmarks.child import answer
from benchmarks.plan import Call

FILE = "state.pt"


def _run(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name("peer")
    experiment_id = experiment.experiment_id if experiment else client.create_experiment("peer")
    return str(client.create_run(experiment_id).info.run_id)


@contextmanager
def upload(*, work: Path, shared: Path, uri: str) -> Iterator[Call]:
    client = MlflowClient(tracking_uri=uri)
    run_id = _run(client)
    yield Call(run=lambda: client.log_artifact(run_id, str(shared / FILE)), figures=lambda: _size(shared))


@contextmanager
def download(*, work: Path, shared: Path, uri: str) -> Iterator[Call]:
    client = MlflowClient(tracking_uri=uri)
    run_id = _run(client)
    client.log_artifact(run_id, str(shared / FILE))
    yield Call(run=lambda: client.download_artifacts(run_id, FILE, str(work)), figures=lambda: _size(shared))


def _size(shared: Path) -> dict[str, float]:
    return {"stored_bytes": (shared / FILE).stat().st_size}


answer(sys.argv[1], find=lambda name: {"upload": upload, "download": download}[name.partition(":")[2]])
