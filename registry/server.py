"""The one place that speaks MLflow: a client for a tracking server, with clear errors and no fluent API.

MLflow's fluent API keeps the active run in thread-local state, so it is not used. Locations of artifacts are taken
from the logged model itself; ``models:/m-…/path`` URIs do not resolve in MLflow 3.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import httpx
from mlflow.artifacts import download_artifacts
from mlflow.entities import LoggedModel, Metric, Param
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException, RestException
from mlflow.tracking import MlflowClient

from registry.errors import RegistryError, RegistryUnavailableError, UnknownVersionError
from registry.versions import PREFIX, Version, version_from_tags

_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_PAGE = 1000


@dataclass(frozen=True)
class Server:
    """A tracking server and the folder where this machine keeps ledgers and its cache."""

    uri: str
    home: Path

    @classmethod
    def from_environment(cls) -> "Server":
        """``MLFLOW_TRACKING_URI`` and ``TREERING_HOME`` (default ``.treering``)."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            raise RegistryUnavailableError("(MLFLOW_TRACKING_URI is not set)", "no address")
        return cls(uri=uri, home=Path(os.environ.get("TREERING_HOME", ".treering")))

    @cached_property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def check(self) -> None:
        """Ask the server whether it lives, before a call that would retry for long.

        Raises:
            RegistryUnavailableError: it does not answer within 5 s.
        """
        if not self.uri.startswith("http"):
            return
        try:
            httpx.get(f"{self.uri.rstrip('/')}/health", timeout=5.0).raise_for_status()
        except httpx.HTTPError as error:
            raise RegistryUnavailableError(self.uri, str(error) or type(error).__name__) from error

    @contextmanager
    def speaking(self, reference: str) -> Iterator[MlflowClient]:
        """The client, with MLflow's exceptions turned into this package's."""
        self.check()
        try:
            yield self.client
        except MlflowException as error:
            if isinstance(error, RestException) and error.error_code in _MISSING:
                raise UnknownVersionError(reference, error.message) from error
            raise RegistryError(f"MLflow at {self.uri} refused a call about '{reference}': {error.message}") from error

    # --- experiments and runs -------------------------------------------------------------------------------------

    def experiment(self, name: str) -> str:
        """The id of the experiment of that name, made when it is not there."""
        with self.speaking(name) as client:
            found = client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            try:
                return str(client.create_experiment(name))
            except RestException as error:  # another process made it between the two calls
                if error.error_code != _EXISTS:
                    raise
                made = client.get_experiment_by_name(name)
                assert made is not None, "the server said that it exists"
                return str(made.experiment_id)

    def start_run(self, experiment: str, *, name: str, tags: Mapping[str, str]) -> str:
        experiment_id = self.experiment(experiment)
        with self.speaking(name) as client:
            return str(client.create_run(experiment_id, run_name=name, tags=dict(tags)).info.run_id)

    def log(self, run_id: str, *, metrics: Mapping[str, float], step: int = 0) -> None:
        now = int(time.time() * 1000)
        rows = [Metric(key, value, now, step) for key, value in metrics.items()]
        with self.speaking(run_id) as client:
            client.log_batch(run_id, metrics=rows)

    def describe(self, run_id: str, *, params: Mapping[str, str]) -> None:
        with self.speaking(run_id) as client:
            client.log_batch(run_id, params=[Param(key, value) for key, value in params.items()])

    def attach(self, run_id: str, path: Path) -> None:
        with self.speaking(run_id) as client:
            client.log_artifact(run_id, str(path))

    def end_run(self, run_id: str, *, status: str) -> None:
        with self.speaking(run_id) as client:
            client.set_terminated(run_id, status)

    # --- logged models and versions -------------------------------------------------------------------------------

    def create_model(self, experiment: str, *, name: str, run_id: str | None, tags: Mapping[str, str]) -> LoggedModel:
        """A logged model in state PENDING."""
        experiment_id = self.experiment(experiment)
        with self.speaking(name) as client:
            return client.create_logged_model(
                experiment_id, name=name, source_run_id=run_id, tags=dict(tags), model_type="treering"
            )

    def upload(self, model_id: str, folder: Path, *, part: str | None = None) -> None:
        """All files of a folder, under ``part`` of the model's artifacts."""
        with self.speaking(model_id) as client:
            client.log_model_artifacts(model_id, str(folder), part)

    def download(self, location: str, part: str, out: Path) -> Path:
        """One folder of a logged model's artifacts, into ``out``."""
        self.check()
        out.mkdir(parents=True, exist_ok=True)
        with self.speaking(location):
            return Path(
                download_artifacts(
                    artifact_uri=f"{location.rstrip('/')}/{part}", dst_path=str(out), tracking_uri=self.uri
                )
            )

    def finalize(self, model_id: str, *, ready: bool) -> None:
        with self.speaking(model_id) as client:
            client.finalize_logged_model(model_id, "READY" if ready else "FAILED")

    def create_version(
        self, name: str, *, model_id: str, run_id: str | None, tags: Mapping[str, str], description: str
    ) -> int:
        with self.speaking(name) as client:
            try:
                client.create_registered_model(name)
            except RestException as error:
                if error.error_code != _EXISTS:
                    raise
            made = client.create_model_version(
                name,
                source=f"models:/{model_id}",
                run_id=run_id,
                model_id=model_id,
                tags=dict(tags),
                description=description,
            )
        return int(made.version)

    def versions(self, name: str) -> list[Version]:
        """The versions that this package published under a name, by number; others are left out."""
        with self.speaking(name) as client:
            found: list[ModelVersion] = []
            token: str | None = None
            while token is None or token:
                page = client.search_model_versions(f"name='{name}'", max_results=_PAGE, page_token=token)
                found += page
                token = page.token or ""
        ours = [version for item in found if isinstance(version := _value(item), Version)]
        return sorted(ours, key=lambda version: version.number)

    def left_out(self, name: str, number: int) -> str | None:
        """What MLflow has under a number that :meth:`versions` leaves out, in words; None when it has nothing."""
        with self.speaking(f"{name}/{number}") as client:
            found = client.search_model_versions(f"name='{name}' and version_number={number}")
        return next((f"version {number}, {_value(item)}" for item in found), None)

    def alias(self, name: str, alias: str) -> int | None:
        """The number under an alias in MLflow's own table, or None."""
        with self.speaking(f"{name}@{alias}") as client:
            try:
                model = client.get_registered_model(name)
            except RestException as error:
                if error.error_code in _MISSING:
                    return None
                raise
        found = model.aliases.get(alias)
        return int(found) if found is not None else None

    def set_alias(self, name: str, alias: str, number: int) -> None:
        with self.speaking(f"{name}@{alias}") as client:
            client.set_registered_model_alias(name, alias, str(number))

    def tag_version(self, name: str, number: int, key: str, value: str | None) -> None:
        """Set a tag, or with None remove it."""
        with self.speaking(f"{name}/{number}") as client:
            if value is None:
                client.delete_model_version_tag(name, str(number), key)
            else:
                client.set_model_version_tag(name, str(number), key, value)


def _value(item: ModelVersion) -> Version | str:
    """A version, or why MLflow's is none: anyone who may write there may publish one or change its tags."""
    tags = {str(key): str(value) for key, value in item.tags.items()}
    if f"{PREFIX}root" not in tags:
        return "which was not published by this registry"
    try:
        return version_from_tags(item.name, int(item.version), tags)
    except (KeyError, ValueError) as error:
        return f"whose tags make no sense ({error})"
