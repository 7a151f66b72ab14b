"""The ingest flow: rows from outside become a validated, memory-mapped data set named by its content."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from prefect import flow, get_run_logger

import ingest as ingestion
import recipes
from flows.settings import home
from registry.cache import Cache

NAMED = 5  # rejected rows, in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A data set on this machine."""

    folder: str
    digest: str
    rows: int
    rejected: dict[str, int]


@flow(name="ingest", flow_run_name="ingest for {recipe}")
def ingest(recipe: str, source: str | None = None) -> Ingested:
    """Validate a recipe's rows and write them as Arrow shards.

    Args:
        recipe: The recipe's module, for example ``recipes.mnist``.
        source: A file or folder the recipe can read; by default the data that ships.

    Raises:
        UnknownRecipeError: no such module; the known ones are listed.
        SourceNotFoundError: ``source`` is not there.
        AllRowsRejectedError: no row is good; reasons are counted.
    """
    log = get_run_logger()
    loaded = recipes.load(recipe)
    shelf = home() / "data" / loaded.name
    shelf.mkdir(parents=True, exist_ok=True)
    with Cache(home() / "cache").workspace() as work:
        data = ingestion.ingest(loaded.rows(Path(source) if source else None), loaded.schema, work / "rows")
        first = list(islice(data.rejections(), NAMED))
        folder = shelf / data.digest.removeprefix("sha256:")[:16]
        if not folder.is_dir():
            (work / "rows").rename(folder)
    rejected = dict(data.index.rejected)
    log.info("%s rows from %s, rejected: %s", len(data), source or "the shipped data", rejected or "none")
    for rejection in first:
        log.warning("rejected %s", rejection)
    if data.index.rows_read - len(data) > len(first):
        log.warning("rejected more: see %s", folder / "rejects.jsonl")
    return Ingested(folder=str(folder), digest=data.digest, rows=len(data), rejected=rejected)
