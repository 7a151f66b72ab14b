"""A recipe whose rows do what a process of the stack refuses; the source names what. Each would make a marker."""

import base64
import json
import marshal
import os
import pickle
import types
from collections.abc import Iterable
from pathlib import Path

from prefect import task

from ingest import Block
from recipes import wine
from recipes.wine import *  # noqa: F403

HOME = os.environ["TREERING_HOME"]
PAYLOAD = b"cos\nmkdir\n(V" + f"{HOME}/marker".encode() + b"\ntR."


def unpickle() -> None:
    pickle.loads(PAYLOAD)  # noqa: S301


def unmarshal() -> None:
    code = compile(f"__import__('os').mkdir({HOME + '/marker'!r})", "<marshal>", "exec")
    types.FunctionType(marshal.loads(marshal.dumps(code)), {})()


def stored_result() -> None:
    """Somebody put a pickled result into Prefect's storage, under the key of a task that keeps its results."""
    storage = Path(os.environ["PREFECT_HOME"]) / "storage"
    storage.mkdir(exist_ok=True)
    metadata = {"storage_key": "planted", "serializer": {"type": "pickle"}, "prefect_version": "3.9.1"}
    record = {"metadata": metadata, "result": base64.b64encode(PAYLOAD).decode()}
    (storage / "planted").write_text(json.dumps(record))
    remembered()


@task(persist_result=True, cache_key_fn=lambda *_: "planted")
def remembered() -> int:
    raise AssertionError("the result was not taken from the storage")


def rows(source: Path | None) -> Iterable[Block]:
    acts = {"unpickle": unpickle, "unmarshal": unmarshal, "stored-result": stored_result}
    if source is not None:
        acts[source.name]()
    return wine.rows(None)
