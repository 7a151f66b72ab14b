"""The state of one worker that its HTTP faces share: the model once it is loaded, and whether it may answer.

A worker is *live* while its event loop turns; *ready* once the model is loaded and every bucket warmed, until it stalls
or drains. While draining it still answers what reaches it, so that nobody who came too late to know is failed.
"""

from dataclasses import dataclass

from serving.batcher import Batcher
from serving.engine import Engine
from serving.errors import NotReadyError, UnknownNameError, quote
from serving.metrics import Metrics
from serving.protocol import ModelInfo
from serving.updater import Updater


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model that answers."""

    model: ModelInfo
    engine: Engine
    batcher: Batcher
    updater: Updater


class Service:
    """One model's name, counters and, once loaded, its parts."""

    def __init__(self, *, model: str) -> None:
        self.model = model
        self.metrics = Metrics(model=model)
        self.loaded: Loaded | None = None
        self.is_draining = False

    @property
    def is_ready(self) -> bool:
        """Whether new requests should be sent here."""
        return self.loaded is not None and not self.is_draining and not self.loaded.batcher.is_stalled

    def find(self, name: str, *, version: str | None = None) -> Loaded:
        """Return the loaded model of that name and, where one is named, that live version.

        Raises:
            UnknownNameError: Another model, or another version than the live one.
            NotReadyError: It is being loaded.
        """
        if name != self.model:
            raise UnknownNameError("the model in the path", found=quote(name), expected=quote(self.model))
        if self.loaded is None:
            raise NotReadyError(f"model '{self.model}'", found="loading", expected="a loaded model", retry_after_s=1)
        self.check_version(version, found=self.loaded.engine.live.slot.version)
        return self.loaded

    def check_version(self, wanted: str | None, *, found: str) -> None:
        """Refuse a version that the path names and that is not the one that answers."""
        if wanted is not None and wanted != found:
            raise UnknownNameError(
                f"version {quote(wanted)} of model '{self.model}'",
                found=f"version '{found}' live",
                expected="a request for the live version, or for none in particular",
            )
