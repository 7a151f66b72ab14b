"""Write the conformance vectors of the checkpoint format: ``python -m tests.ckpt.make_vectors``.

A vector that is there stays as it is: it is the golden file of what a release has written. To make one anew, which is
right before the first release that has it and never after, remove it first.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ckpt
from tests.ckpt import bad_vectors_files, bad_vectors_headers, bad_vectors_manifests, bad_vectors_pieces, signed_vectors
from tests.ckpt.vector_answers import answer, said, trust_of
from tests.ckpt.vector_states import GOOD as MAKERS
from tests.ckpt.vectors import DERIVED, GOOD, KEYS, Vector, derived, edits, unpacked

LIES = (
    bad_vectors_files.lies()
    | bad_vectors_manifests.lies()
    | bad_vectors_headers.lies()
    | bad_vectors_pieces.lies()
    | signed_vectors.lies()
)
AS_EDITS = ("two-chunks", "narrow-integers")  # good ones that are too large to lie here as they are
VALUES = {"plain": ("w",), "views": ("second", "every other", "column", "repeated"), "channels-last": ("conv",)}


def make(name: str, folder: Path) -> dict[str, Any]:
    """Write a good vector as ``ckpt`` does today; what is expected of it."""
    path = MAKERS[name](folder)
    return {"path": path, **answer(folder / path, values=VALUES.get(name, ()))}


def make_good() -> None:
    for name in MAKERS:
        if name not in AS_EDITS and not (GOOD / name).exists():
            (GOOD / name).mkdir(parents=True)
            stated = make(name, GOOD / name)
            (GOOD / name / "expected.json").write_text(rows(stated))


def make_keys() -> None:
    KEYS.mkdir(exist_ok=True)
    for name, content in signed_vectors.key_files().items():
        if not (KEYS / name).exists():
            (KEYS / name).write_bytes(content)


def rows(table: dict[str, Any]) -> str:
    """JSON with a line for each key, and for each of ``tensors``."""
    lines = (f"{json.dumps(key)}: {_inner(key, value)}" for key, value in table.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _inner(key: str, value: Any) -> str:
    return rows(value).rstrip() if key == "tensors" and value else json.dumps(value, ensure_ascii=False)


def made_from_nothing(name: str, scratch: Path) -> Vector:
    (scratch / "nothing").mkdir()
    (scratch / "made").mkdir()
    stated = make(name, scratch / "made")
    path = stated.pop("path")
    return {"of": None, "path": path, "edits": edits(scratch / "nothing", scratch / "made"), "expected": stated}


def lied(name: str, scratch: Path, table: dict[str, Vector]) -> Vector:
    """A good vector and the edits that make a bad one of it."""
    word, base, act = LIES[name]
    path = unpacked(base, scratch / "old", table)
    shutil.copytree(scratch / "old", scratch / "new", symlinks=True)
    act(scratch / "new")
    vector: Vector = {"of": base, "path": str(path.relative_to(scratch / "old"))}
    if word == "root-mismatch":
        vector["root"] = json.loads((GOOD / base / "expected.json").read_text())["root"]
    if name in signed_vectors.TRUSTS:
        vector["trust"] = signed_vectors.TRUSTS[name]
    expected: Vector = {"fault": word}
    if word == signed_vectors.ACCEPTED:
        report = ckpt.verify(scratch / "new" / vector["path"], trust=trust_of(vector))
        report.raise_on_fault()
        assert report.accepted is not None
        expected = {word: said(report.accepted)}
    return vector | {"edits": edits(scratch / "old", scratch / "new"), "expected": expected}


def made_derived() -> Iterator[tuple[str, Vector]]:
    table = derived() if DERIVED.exists() else {}
    yield from table.items()
    for name in (name for name in (*AS_EDITS, *LIES) if name not in table):
        with TemporaryDirectory() as scratch:
            made = name in AS_EDITS
            table[name] = made_from_nothing(name, Path(scratch)) if made else lied(name, Path(scratch), table)
            yield name, table[name]


def main() -> None:
    make_good()
    make_keys()
    DERIVED.write_text(rows(dict(made_derived())))


if __name__ == "__main__":
    main()
