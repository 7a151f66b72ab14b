"""What can go wrong between a source and a data set, as one tree.

    IngestError
    ├── SchemaError             (ValueError)         the schema contradicts itself, or a block has not its columns
    ├── UnknownColumnError      (KeyError)           a column was asked for that the schema does not have
    ├── SourceNotFoundError     (FileNotFoundError)  the file to read is not there
    ├── EmptySourceError        (ValueError)         the source gave no row at all
    ├── AllRowsRejectedError    (ValueError)         rows came, and none was good
    ├── DatasetExistsError      (FileExistsError)    the target folder holds something else
    ├── DatasetNotFoundError    (FileNotFoundError)  no data set in the folder
    ├── CorruptIndexError                            index.json cannot be believed
    └── CorruptShardError                            a shard's bytes are not those that were written

Each message names the thing, what was found, what was expected and the next step; the facts are attributes too.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


class IngestError(Exception):
    """Anything this package refuses."""


class SchemaError(IngestError, ValueError):
    """A schema that contradicts itself, or rows that do not carry its fields."""


class UnknownColumnError(IngestError, KeyError):
    """A data set or a batch was asked for a column that it does not have."""

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"no column '{name}' in these rows: the columns are {', '.join(self.known)}")

    def __str__(self) -> str:
        return str(self.args[0])


class SourceNotFoundError(IngestError, FileNotFoundError):
    """The source file is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"no data file at '{path}' (looked from {Path.cwd()}): give the path of an existing file")


class EmptySourceError(IngestError, ValueError):
    """The source ended before its first row."""

    def __init__(self, source: Path | None = None) -> None:
        self.source = source
        named = f"'{source}'" if source is not None else "the source"
        super().__init__(
            f"{named} gave no rows, expected at least 1: nothing was written; give it a file that has some"
        )


class AllRowsRejectedError(IngestError, ValueError):
    """Every row broke the schema."""

    def __init__(self, *, rows_read: int, rejected: Mapping[str, int], first: Sequence[object]) -> None:
        self.rows_read, self.rejected, self.first = rows_read, dict(rejected), tuple(first)
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
        super().__init__(
            f"all {rows_read} rows of the source were rejected ({reasons}): nothing was written; compare the source's "
            "columns and units with the schema. " + ". ".join(f"{rejection}" for rejection in first)
        )


class DatasetExistsError(IngestError, FileExistsError):
    """The target folder already holds other content."""

    def __init__(self, out: Path, *, found: str, expected: str) -> None:
        self.out, self.found, self.expected = out, found, expected
        super().__init__(
            f"'{out}' already holds {found}, and these rows would be {expected}: "
            "choose another folder or remove it first"
        )


class DatasetNotFoundError(IngestError, FileNotFoundError):
    """The folder holds no data set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"no data set in '{folder}' (index.json is missing): write one with ingest.ingest(...)")


class CorruptIndexError(IngestError):
    """index.json is unreadable or contradicts itself."""

    def __init__(self, path: Path, *, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(f"the index '{path}' cannot be used: {found}; ingest the source again into a new folder")


class CorruptShardError(IngestError):
    """A shard is missing, cut short or altered."""

    def __init__(self, path: Path, *, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"shard '{path}' is not the one that was written: expected {expected}, found {found}; "
            "ingest the source again into a new folder"
        )
