"""The one place that speaks MLflow: a client for a tracking server, with clear errors and no fluent API.

MLflow's fluent API keeps the active run in thread-local state, so it is not used. Locations of artifacts are taken
from the logged model itself; ``models:/m-…/path`` URIs do not resolve in MLflow 3.

A server that is away and comes back: each call is made again, for ``patience_s``, and says so in the log. MLflow's own
retries are off, since they repeat a call whose answer was lost without asking whether it was carried out: a version
would appear twice.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"  # see the head of this module

from mlflow.artifacts import download_artifacts
from mlflow.entities import LoggedModel, Metric, Param
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException, RestException
from mlflow.tracking import MlflowClient
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request
from requests.exceptions import RequestException

from registry.errors import (
    NoServerError,
    RegistryError,
    RegistryRefusedError,
    RegistryUnavailableError,
    UnknownVersionError,
)
from registry.patience import Tries
from registry.versions import PREFIX, Version, version_from_tags

_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_KEPT_OUT = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_NO_ANSWER = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
_CHECK_S = 5
_PAGE = 1000
_DESCRIPTION = (
    "`champion` is the version that is served, `previous` the one to go back to. Who moved what, when and why: "
    "`python -m registry history {name}`."
)

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """A tracking server and the folder where this machine keeps ledgers and its cache.

    Attributes:
        uri: Its address, without credentials.
        home: The folder.
        patience_s: How long a call waits for the server when it is away; 0 fails at once.
    """

    uri: str
    home: Path
    patience_s: float = 0.0

    @classmethod
    def from_environment(cls) -> "Server":
        """``MLFLOW_TRACKING_URI``, ``TREERING_HOME`` (default ``.treering``), ``TREERING_PATIENCE_S`` (default 0).

        A user and a password in the address move to the variables from which MLflow's client reads them, so that the
        address can be shown.
        """
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            raise NoServerError
        parts = urlsplit(uri)
        if parts.username:
            os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
            os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
            uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return cls(
            uri=uri.rstrip("/"),
            home=Path(os.environ.get("TREERING_HOME") or ".treering"),
            patience_s=float(os.environ.get("TREERING_PATIENCE_S", "0")),
        )

    @cached_property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def check(self) -> None:
        """Ask the server whether it lives, before a call that would wait for long.

        Raises:
            RegistryUnavailableError: it does not answer within 5 s.
        """
        if not self.uri.startswith("http"):
            return
        try:
            answer = http_request(  # type: ignore[no-untyped-call]
                get_default_host_creds(self.uri),  # type: ignore[no-untyped-call]
                "/health",
                "GET",
                timeout=_CHECK_S,
                raise_on_status=False,
            )
        except MlflowException as error:
            raise RegistryUnavailableError(self.uri, error.message) from error
        if answer.status_code >= 500:
            raise RegistryUnavailableError(self.uri, f"status {answer.status_code}")

    def ask(
        self,
        reference: str,
        call: Callable[[MlflowClient], T],
        *,
        done: Callable[[MlflowClient], T | None] = lambda client: None,
    ) -> T:
        """Make a call, and again while the server is away; MLflow's exceptions become this package's.

        Args:
            reference: What it is about, for messages.
            call: One that may be carried out twice, unless ``done`` is given.
            done: Looks for what an earlier try, whose answer was lost, may have done; then that is the answer.

        Raises:
            RegistryUnavailableError: the server is away, and was for ``patience_s``.
            UnknownVersionError, RegistryRefusedError, RegistryError: it answered something else than asked for.
        """
        tries = Tries(patience_s=self.patience_s)
        while True:
            try:
                self.check()
                found = done(self.client) if tries.failed else None
                answer = found if found is not None else call(self.client)
            except (MlflowException, RequestException, RegistryUnavailableError) as error:
                tries = tries.fail(now_s=time.monotonic())
                is_away = isinstance(error, RegistryUnavailableError)
                if not _may_pass(error) or tries.is_over(now_s=time.monotonic(), is_away=is_away):
                    raise self._told(error, reference) from error
                if tries.failed == 1:
                    log.warning("no answer about '%s': %s Trying again.", reference, error)
                time.sleep(tries.pause_s)
            else:
                if tries.failed:
                    log.warning("MLflow at %s answers again, after %d tries", self.uri, tries.failed)
                return answer

    def _told(self, error: Exception, reference: str) -> RegistryError:
        """An error in this package's words."""
        if isinstance(error, RegistryError):
            return error
        code = getattr(error, "error_code", None)
        status = getattr(getattr(error, "response", None), "status_code", None)
        if code in _KEPT_OUT or status in (401, 403):
            return RegistryRefusedError(self.uri, reference, found=str(error))
        if isinstance(error, RestException) and code in _MISSING:
            return UnknownVersionError(reference, error.message)
        return RegistryError(f"MLflow at {self.uri} refused a call about '{reference}': {error}")

    # --- experiments and runs -------------------------------------------------------------------------------------

    def experiment(self, name: str) -> str:
        """The id of the experiment of that name, made when it is not there."""

        def find_or_make(client: MlflowClient) -> str:
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

        return self.ask(name, find_or_make)

    def start_run(self, experiment: str, *, name: str, tags: Mapping[str, str]) -> str:
        """A run; when the answer is lost there may be an empty one more."""
        experiment_id = self.experiment(experiment)
        run = self.ask(name, lambda client: client.create_run(experiment_id, run_name=name, tags=dict(tags)))
        return str(run.info.run_id)

    def log(self, run_id: str, *, metrics: Mapping[str, float], step: int = 0) -> None:
        now = int(time.time() * 1000)
        rows = [Metric(key, value, now, step) for key, value in metrics.items()]
        self.ask(run_id, lambda client: client.log_batch(run_id, metrics=rows))

    def describe(self, run_id: str, *, params: Mapping[str, str]) -> None:
        rows = [Param(key, value) for key, value in params.items()]
        self.ask(run_id, lambda client: client.log_batch(run_id, params=rows))

    def attach(self, run_id: str, path: Path) -> None:
        self.ask(run_id, lambda client: client.log_artifact(run_id, str(path)))

    def end_run(self, run_id: str, *, status: str) -> None:
        self.ask(run_id, lambda client: client.set_terminated(run_id, status))

    def unfinished_runs(self, experiment: str) -> dict[str, str]:
        """Runs that the server shows as running → the flow run that they stand for, by its tag."""
        experiment_id = self.experiment(experiment)
        found = self.ask(
            experiment, lambda client: client.search_runs([experiment_id], "attributes.status = 'RUNNING'")
        )
        tag = f"{PREFIX}flow_run"
        return {run.info.run_id: run.data.tags[tag] for run in found if tag in run.data.tags}

    def newest_params(self, experiment: str, *, having: str) -> dict[str, str] | None:
        """The parameters of the run that began last among those that have the parameter ``having``."""
        experiment_id = self.experiment(experiment)
        found = self.ask(
            experiment,
            lambda client: client.search_runs(
                [experiment_id], f"params.{having} LIKE '%'", max_results=1, order_by=["attributes.start_time DESC"]
            ),
        )
        return dict(found[0].data.params) if found else None

    # --- logged models and versions -------------------------------------------------------------------------------

    def create_model(self, experiment: str, *, name: str, run_id: str | None, tags: Mapping[str, str]) -> LoggedModel:
        """A logged model in state PENDING; when the answer is lost there may be one more, which stays PENDING."""
        experiment_id = self.experiment(experiment)
        return self.ask(
            name,
            lambda client: client.create_logged_model(
                experiment_id, name=name, source_run_id=run_id, tags=dict(tags), model_type="treering"
            ),
        )

    def upload(self, model_id: str, folder: Path, *, part: str | None = None) -> None:
        """All files of a folder, under ``part`` of the model's artifacts."""
        self.ask(model_id, lambda client: client.log_model_artifacts(model_id, str(folder), part))

    def download(self, location: str, part: str, out: Path) -> Path:
        """One folder of a logged model's artifacts, into ``out``."""
        out.mkdir(parents=True, exist_ok=True)
        uri = f"{location.rstrip('/')}/{part}"
        return Path(
            self.ask(location, lambda _: download_artifacts(artifact_uri=uri, dst_path=str(out), tracking_uri=self.uri))
        )

    def finalize(self, model_id: str, *, ready: bool) -> None:
        self.ask(model_id, lambda client: client.finalize_logged_model(model_id, "READY" if ready else "FAILED"))

    def create_version(
        self, name: str, *, model_id: str, run_id: str | None, tags: Mapping[str, str], description: str
    ) -> int:
        """The version of a logged model: one, even when the server ends between making it and saying so."""
        source = f"models:/{model_id}"

        def create(client: MlflowClient) -> ModelVersion:
            try:
                client.create_registered_model(name, description=_DESCRIPTION.format(name=name))
            except RestException as error:
                if error.error_code != _EXISTS:
                    raise
            return client.create_model_version(
                name, source=source, run_id=run_id, model_id=model_id, tags=dict(tags), description=description
            )

        def made(client: MlflowClient) -> ModelVersion | None:
            return next((item for item in _all_versions(client, name) if item.source == source), None)

        return int(self.ask(name, create, done=made).version)

    def versions(self, name: str) -> list[Version]:
        """The versions that this package published under a name, by number; others are left out."""
        found = self.ask(name, lambda client: list(_all_versions(client, name)))
        ours = [version for item in found if isinstance(version := _value(item), Version)]
        return sorted(ours, key=lambda version: version.number)

    def left_out(self, name: str, number: int) -> str | None:
        """What MLflow has under a number that :meth:`versions` leaves out, in words; None when it has nothing."""
        chosen = f"name='{name}' and version_number={number}"
        found = self.ask(f"{name}/{number}", lambda client: client.search_model_versions(chosen))
        return next((f"version {number}, {_value(item)}" for item in found), None)

    def alias(self, name: str, alias: str) -> int | None:
        """The number under an alias in MLflow's own table, or None."""

        def aliases(client: MlflowClient) -> Mapping[str, str]:
            try:
                found: Mapping[str, str] = client.get_registered_model(name).aliases
            except RestException as error:
                if error.error_code not in _MISSING:
                    raise
                return {}
            return found

        found = self.ask(f"{name}@{alias}", aliases).get(alias)
        return int(found) if found is not None else None

    def set_alias(self, name: str, alias: str, number: int) -> None:
        self.ask(f"{name}@{alias}", lambda client: client.set_registered_model_alias(name, alias, str(number)))

    def drop_alias(self, name: str, alias: str) -> None:
        self.ask(f"{name}@{alias}", lambda client: client.delete_registered_model_alias(name, alias))

    def tag_version(self, name: str, number: int, key: str, value: str | None) -> None:
        """Set a tag, or with None remove it."""

        def tag(client: MlflowClient) -> None:
            if value is None:
                client.delete_model_version_tag(name, str(number), key)
            else:
                client.set_model_version_tag(name, str(number), key, value)

        self.ask(f"{name}/{number}", tag)


def _may_pass(error: Exception) -> bool:
    """Whether the same call may go well later: no answer came, or one that a server gives on its way down or up."""
    if isinstance(error, RegistryUnavailableError):
        return True
    if isinstance(error, MlflowException):
        return not isinstance(error, RestException) and error.error_code in _NO_ANSWER
    response = getattr(error, "response", None)  # of an upload, which raises what requests raises
    return response is None or response.status_code >= 500


def _all_versions(client: MlflowClient, name: str) -> Iterator[ModelVersion]:
    token: str | None = None
    while token is None or token:
        page = client.search_model_versions(f"name='{name}'", max_results=_PAGE, page_token=token)
        yield from page
        token = page.token or ""


def _value(item: ModelVersion) -> Version | str:
    """A version, or why MLflow's is none: anyone who may write there may publish one or change its tags."""
    tags = {str(key): str(value) for key, value in item.tags.items()}
    if f"{PREFIX}root" not in tags:
        return "which was not published by this registry"
    try:
        return version_from_tags(item.name, int(item.version), tags)
    except (KeyError, ValueError) as error:
        return f"whose tags make no sense ({error})"
