"""A real MLflow server for a stage: the local stack's, on a port of its own, with its files in the stage's folder."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.plan import Value
from flows.stack import mlflow
from flows.stack.environment import Addresses
from flows.stack.process import find, free_port, start_all, stop


@contextmanager
def mlflow_server(home: Path) -> Iterator[Mapping[str, Value]]:
    """Start the server, give cases its ``uri``, and stop it whatever happens.

    Raises:
        StackError: It did not start; the end of its log is shown.
    """
    port = free_port()
    service = mlflow.service(home, Addresses(mlflow=f"http://127.0.0.1:{port}", prefect="", victoria=None))
    try:
        start_all([(service, port)], home, say=lambda line: None)
        yield {"uri": service.url}
    finally:
        record = find(home, service.name)
        if record is not None:
            stop(record, home)
