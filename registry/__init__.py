"""The registry: names and versions of models in MLflow, deltas between them, and who moved what.

``publish`` makes a checkpoint a version in two phases: it is invisible until everything was uploaded and read back.
A version stores a full checkpoint or a delta on an earlier one; ``fetch`` brings it the cheapest way from what this
machine holds and proves every byte. ``promote`` and ``rollback`` go through an append-only, hash-chained ledger with
compare-and-set; the alias in MLflow is a view of it. A root that was rolled back is quarantined until someone clears
it.

    >>> version = registry.publish("runs/1/checkpoint", name="mnist")        # doctest: +SKIP
    >>> registry.promote("mnist", version.number, expect=None, reason="first")
    >>> folder = registry.fetch("mnist@champion")

Works with any MLflow server as it is: no plug-in, no fluent API. Settings come from ``MLFLOW_TRACKING_URI`` and
``TREERING_HOME``, or as a :class:`Server`; MLflow's own variables for users, tokens and certificates apply. Command
line: ``python -m registry --help``.
"""

from registry.errors import (
    BrokenLedgerError,
    ForeignFileError,
    InvalidNameError,
    LedgerError,
    NoServerError,
    NotQuarantinedError,
    PublishError,
    QuarantinedError,
    RegistryError,
    RegistryRefusedError,
    RegistryUnavailableError,
    StaleExpectationError,
    UnknownRootError,
    UnknownVersionError,
)
from registry.fetching import fetch, resolve
from registry.ledger import Author, Entry, Ledger, Target, live, live_at
from registry.promotion import clear, history, known_root, promote, quarantined_roots, rollback, sync
from registry.publication import publish
from registry.server import Server
from registry.versions import Version

__all__ = [
    "Author",
    "BrokenLedgerError",
    "Entry",
    "ForeignFileError",
    "InvalidNameError",
    "Ledger",
    "LedgerError",
    "NoServerError",
    "NotQuarantinedError",
    "PublishError",
    "QuarantinedError",
    "RegistryError",
    "RegistryRefusedError",
    "RegistryUnavailableError",
    "Server",
    "StaleExpectationError",
    "Target",
    "UnknownRootError",
    "UnknownVersionError",
    "Version",
    "clear",
    "fetch",
    "history",
    "known_root",
    "live",
    "live_at",
    "promote",
    "publish",
    "quarantined_roots",
    "resolve",
    "rollback",
    "sync",
]
