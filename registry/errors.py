"""What can go wrong between this program and the registry.

    RegistryError
    ├── RegistryUnavailableError   the MLflow server does not answer
    ├── RegistryRefusedError       the MLflow server does not let this user in
    ├── UnknownVersionError        (KeyError)   no such model, version or alias
    ├── InvalidNameError           (ValueError) a model name or reference that cannot be one
    ├── ForeignFileError           (ValueError) a checkpoint folder with a file that is no part of it
    ├── PublishError               an upload that did not read back as it was written
    └── LedgerError
        ├── StaleExpectationError  compare-and-set: another version is live than the mover believes
        ├── QuarantinedError       a root that was rolled back and not cleared since
        └── BrokenLedgerError      the chain of hashes does not hold

Each says the thing, what was found, what was expected and what to do next; the facts are attributes.
"""

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


class StaleExpectationError(LedgerError):
    """The mover believes that another version is live than is."""

    def __init__(self, *, model: str, alias: str, found: str, expected: str) -> None:
        super().__init__(
            f"'{model}@{alias}' was not moved: {found} is live, expected {expected}. Someone moved it meanwhile; look "
            f"at 'python -m registry history {model}' and decide again.",
            model=model,
            alias=alias,
            found=found,
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
