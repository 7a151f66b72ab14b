"""The conformance vectors on disk: the good ones as folders, and those that are a good one with edits.

``docs/formats/vectors/README.md`` describes both for whoever writes a reader in another language.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "docs" / "formats" / "vectors" / "v1"
GOOD, KEYS, DERIVED = VECTORS / "good", VECTORS / "keys", VECTORS / "derived.json"
_BLOCK = 8  # bytes that are compared at once
_SEARCHED = 4096  # bytes at most that are searched for moved parts, which takes the square of it
_REPEATED = re.compile(rb"(.{1,2})\1{31,}", re.DOTALL)

Edit = dict[str, Any]
Splice = list[Any]  # first byte, end, hex digits of what stands there afterwards, how often if not once
Vector = dict[str, Any]


def derived(file: Path = DERIVED) -> dict[str, Vector]:
    """The vectors that are made from good ones, by name."""
    found: dict[str, Vector] = json.loads(file.read_text())
    return found


def expected(name: str) -> Vector:
    """What a reader answers about a good vector that lies there as a folder."""
    found: Vector = json.loads((GOOD / name / "expected.json").read_text())
    return found


def good_names() -> list[str]:
    return sorted(path.name for path in GOOD.iterdir())


def unpacked(name: str, target: Path, table: dict[str, Vector]) -> Path:
    """A copy of a vector below ``target``; the path of its checkpoint."""
    if name not in table:
        shutil.copytree(GOOD / name, target, ignore=shutil.ignore_patterns("expected.json"))
        return target / str(expected(name)["path"])
    vector = table[name]
    if vector["of"] is None:
        target.mkdir()
    else:
        unpacked(vector["of"], target, table)
    for edit in vector["edits"]:
        apply(edit, target)
    return target / str(vector["path"])


def apply(edit: Edit, folder: Path) -> None:
    """One edit: a file removed, replaced by a link or a FIFO, or with another size and other bytes."""
    file = folder / edit["file"]
    if file.is_dir():
        file.rmdir()  # what was inside has been removed
    if edit.get("remove"):
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    if "link" in edit:
        file.symlink_to(edit["link"])
    elif "fifo" in edit:
        os.mkfifo(file)
    else:
        data = file.read_bytes() if file.exists() else b""
        file.write_bytes(spliced(data.ljust(edit["grow"], b"\0") if "grow" in edit else data, edit["splices"]))


def spliced(data: bytes, splices: list[Splice]) -> bytes:
    """Runs of bytes [start, end] replaced by others, given as hex digits and how often they are repeated.

    Positions are those before any of the splices, which are in ascending order.
    """
    parts, reached = [], 0
    for start, end, digits, *times in splices:
        parts += [data[reached:start], bytes.fromhex(digits) * (times[0] if times else 1)]
        reached = end
    return b"".join([*parts, data[reached:]])


def edits(old: Path, new: Path) -> list[Edit]:
    """What turns one folder into the other."""
    before, after = dict(_files(old)), dict(_files(new))
    kept = before.keys() & after.keys()
    unlike = {name for name in kept if _shape(before[name]) != _shape(after[name])}
    removed = sorted((before.keys() - after.keys()) | unlike)
    made = sorted((after.keys() - before.keys()) | unlike)
    changed = sorted(name for name in kept - unlike if before[name] != after[name])
    return [
        *({"file": name, "remove": True} for name in removed),
        *(_made(name, after[name]) for name in made),
        *(_changed(name, before[name], after[name]) for name in changed),
    ]


def _files(folder: Path) -> Iterator[tuple[str, bytes | Edit]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            yield name, {"link": os.readlink(path)}
        elif path.is_fifo():
            yield name, {"fifo": True}
        elif path.is_file() and name != "expected.json":
            yield name, path.read_bytes()


def _shape(found: bytes | Edit) -> object:
    return found if isinstance(found, dict) else bytes


def _made(name: str, found: bytes | Edit) -> Edit:
    if isinstance(found, dict):
        return {"file": name, **found}
    return {"file": name, "grow": len(found), "splices": list(_runs(bytes(len(found)), found))}


def _changed(name: str, old: bytes | Edit, new: bytes | Edit) -> Edit:
    assert isinstance(old, bytes)
    assert isinstance(new, bytes)
    if new == old.ljust(len(new), b"\0"):
        return {"file": name, "grow": len(new), "splices": []}
    ways = [list(_parts(old, new)), *([list(_runs(old, new))] if len(old) == len(new) else [])]
    return {"file": name, "splices": min(ways, key=lambda splices: len(json.dumps(splices)))}


def _runs(old: bytes, new: bytes) -> Iterator[Splice]:
    """Where two files of one length differ."""
    start = None
    for block in range(0, len(new) + _BLOCK, _BLOCK):
        same = old[block : block + _BLOCK] == new[block : block + _BLOCK]
        if start is not None and same:
            yield from _written(start, min(block, len(new)), new[start:block])
            start = None
        elif start is None and not same:
            start = block


def _parts(old: bytes, new: bytes) -> Iterator[Splice]:
    """What is left of two files between their common beginning and end, and what moved there."""
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    inner = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(map(len, inner)) > _SEARCHED:
        yield from _written(head, len(old) - tail, inner[1])
        return
    for tag, start, end, first, last in SequenceMatcher(None, *inner, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from _written(head + start, head + end, inner[1][first:last])


def _alike(first: bytes, second: bytes) -> int:
    """How many bytes they have in common at the beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, two) in pairs if one != two), min(len(first), len(second)))


def _written(start: int, end: int, content: bytes) -> Iterator[Splice]:
    """The splices that put ``content`` there; a pattern that repeats is written once, with its number of times."""
    position = 0
    for run in _REPEATED.finditer(content):
        if run.start() > position:
            yield [start, end, content[position : run.start()].hex()]
            start = end
        yield [start, end, run[1].hex(), len(run[0]) // len(run[1])]
        start, position = end, run.end()
    if position < len(content) or not content:
        yield [start, end, content[position:].hex()]
