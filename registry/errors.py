"""What can go wrong between this program and the registry.

    RegistryError
    ├── RegistryUnavailableError   the MLflow server does not answer
    │   └── NoServerError          nobody said which MLflow server
    ├── RegistryRefusedError       the MLflow server does not let this user in
    ├── UnknownVersionError        (KeyError)   no such model, version or alias
    ├── InvalidNameError           (ValueError) a model name or reference that cannot be one
    ├── ForeignFileError           (ValueError) a checkpoint folder with a file that is no part of it
    ├── PublishError               an upload that did not read back as it was written
    └── LedgerError
        ├── UnknownRootError       (KeyError)   no root of this model's ledger, or more than one
        ├── StaleExpectationError  compare-and-set: another version is live than the mover believes
        ├── QuarantinedError       a root that was rolled back and not cleared since
        ├── NotQuarantinedError    (ValueError) a root that there is nothing to clear of
        └── BrokenLedgerError      the chain of hashes does not hold

Each says the thing, what was found, what was expected and what to do next; the facts are attributes.
"""

from collections.abc import Sequence
from pathlib import Path


class RegistryError(Exception):
    """Anything this package raises by itself; ``facts`` holds what the message states."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts


class RegistryUnavailableError(RegistryError):
    """The MLflow server does not answer."""

    def __init__(self, uri: str, found: str) -> None:
        super().__init__(
            f"the MLflow server at {uri} does not answer: {found}. Start it with 'python -m flows up' and take its "
            "address by 'eval \"$(python -m flows env)\"', or set MLFLOW_TRACKING_URI to one that runs.",
            uri=uri,
            found=found,
        )


class NoServerError(RegistryUnavailableError):
    """The environment names no MLflow server."""

    def __init__(self) -> None:
        RegistryError.__init__(
            self,
            "MLFLOW_TRACKING_URI is not set, so there is no MLflow server to ask. Where a stack runs, "
            "'eval \"$(python -m flows env)\"' sets it ('python -m flows up' starts one); otherwise set it to the "
            "address of a server, such as http://127.0.0.1:5000.",
        )


class RegistryRefusedError(RegistryError):
    """The MLflow server does not let this user in, or not to this."""

    def __init__(self, uri: str, reference: str, found: str) -> None:
        super().__init__(
            f"the MLflow server at {uri} does not let this user in for '{reference}': found {found!r}. Set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to a user who may.",
            uri=uri,
            reference=reference,
            found=found,
        )


class UnknownVersionError(RegistryError, KeyError):
    """A model, version or alias that the registry does not have."""

    def __init__(self, reference: str, found: str) -> None:
        super().__init__(
            f"'{reference}' names no version: found {found}. Publish one with the release flow, or name an existing "
            "one, as 'mnist/3' or 'mnist@champion'.",
            reference=reference,
            found=found,
        )

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidNameError(RegistryError, ValueError):
    """A name or reference of a form that cannot stand in the registry."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"'{name}' is no model name or reference: expected letters, digits, '.', '-' and '_' for a name, "
            "'name@alias' or 'name/number' for a version.",
            name=name,
        )


class ForeignFileError(RegistryError, ValueError):
    """A folder that is to be published holds a file that its manifest does not name; it would go up with it."""

    def __init__(self, folder: Path, file: str) -> None:
        super().__init__(
            f"'{folder}' was not published: found '{file}', expected only the files that its manifest names. Move it "
            "away, or save it as an attachment.",
            folder=folder,
            file=file,
        )


class PublishError(RegistryError):
    """What was uploaded did not read back as it was written; the version stays PENDING and invisible."""

    def __init__(self, name: str, model_id: str, found: str) -> None:
        super().__init__(
            f"'{name}' was not published: reading back {model_id} found {found}. It stays PENDING; publish again.",
            name=name,
            model_id=model_id,
            found=found,
        )


class LedgerError(RegistryError):
    """A promotion that the ledger does not take."""


class UnknownRootError(LedgerError, KeyError):
    """What was named is no root that was ever live, or quarantined, in a model; or it could be several."""

    def __init__(self, named: str, *, model: str, matches: Sequence[str], known: Sequence[str]) -> None:
        found = f"names no root in the ledger of '{model}': found {_listed(known)}"
        if not known:
            found = f"names no root of '{model}', which has no ledger here: nothing of it was ever live"
        if matches:
            found = f"could be several roots of '{model}': {_listed(matches)}"
        super().__init__(
            f"'{named}' {found}. Nothing was written. Name the model and one of its roots, whole, by its first "
            "characters, or by its version's number; 'python -m registry versions MODEL' lists them.",
            named=named,
            model=model,
            matches=tuple(matches),
            known=tuple(known),
        )

    def __str__(self) -> str:
        return str(self.args[0])


class StaleExpectationError(LedgerError):
    """The mover believes that another version is live than is."""

    def __init__(self, *, model: str, alias: str, found: str, live: int | None, expected: str | None) -> None:
        decide = f"Someone moved it meanwhile; look at 'python -m registry history {model}' and decide again."
        if expected is None:
            decide = (
                f"A move says which version it replaces: with '--expect {live}' (in Python expect={live}) this one "
                f"does; 'python -m registry history {model}' says how it came to be live."
            )
        super().__init__(
            f"'{model}@{alias}' was not moved: {found} is live, expected {expected or 'nothing'}. {decide}",
            model=model,
            alias=alias,
            found=found,
            live=live,
            expected=expected,
        )


class QuarantinedError(LedgerError):
    """The root was rolled back before and nobody cleared it."""

    def __init__(self, *, model: str, root: str, reason: str) -> None:
        super().__init__(
            f"'{model}' {root} is quarantined ({reason}); it is not served until someone clears it with "
            f"'python -m registry clear {model} {root} --reason …'.",
            model=model,
            root=root,
            reason=reason,
        )


class NotQuarantinedError(LedgerError, ValueError):
    """There is nothing to clear."""

    def __init__(self, *, model: str, root: str, held: Sequence[str]) -> None:
        super().__init__(
            f"'{model}' {root} is not quarantined, so there is nothing to clear: found {_listed(held)} under "
            "quarantine. Nothing was written.",
            model=model,
            root=root,
            held=tuple(held),
        )


class BrokenLedgerError(LedgerError):
    """An entry of the ledger was altered or removed."""

    def __init__(self, path: str, line: int, found: str, expected: str) -> None:
        super().__init__(
            f"the ledger '{path}' is broken at line {line}: found {found}, expected {expected}. Nothing was written; "
            "restore the file from a backup.",
            path=path,
            line=line,
            found=found,
            expected=expected,
        )


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items) or "none"
