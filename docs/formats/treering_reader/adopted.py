"""Files that others wrote: what their headers may say, and whether a manifest says the same (*Adopted files*)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

from treering_reader.dtypes import ADOPTED, SIZES
from treering_reader.faults import FaultError, demand
from treering_reader.layout import AXES_AT_MOST, NAME_AT_MOST, is_contiguous, size_of, users
from treering_reader.placement import INDEX, check_coverage
from treering_reader.schema import Manifest

HEADER_AT_MOST = 100_000_000
_SIGNS_AT_MOST = {b"{": (1 << 20) + 2, b"[": 1 << 21, b",": 1 << 24}
_FIELDS = {"dtype", "shape", "data_offsets"}
Entry = tuple[int, int, str, str, tuple[int, ...]]  # first byte, end, name, dtype, shape


def check_adopted(manifest: Manifest) -> None:
    """The rules that the manifest of adopted files can break by itself.

    Raises:
        FaultError: ``file-name``, ``file-table``, ``placement`` or ``adopted-storage``.
    """
    demand(not manifest.pieces, "adopted-storage", "adopted files in pieces")
    names = [file.name for file in manifest.files]
    payload = [name for name in names if name != INDEX]
    for name in payload:
        _check_name(name)
    right = len(set(names)) == len(names) and payload and (len(payload) == 1 or INDEX in names)
    demand(bool(right), "file-table", f"the files {names[:8]}, expected one, or several with {INDEX}")
    for index, tensors in enumerate(users(manifest)):
        plain = len(tensors) == 1 and tensors[0].offset == 0 and is_contiguous(tensors[0])
        plain = plain and tensors[0].dtype in ADOPTED.values()
        demand(plain, "adopted-storage", f"storage {index} is not one contiguous tensor that safetensors names")
    storages = manifest.storages
    order = sorted(range(len(storages)), key=lambda index: (storages[index].offset, storages[index].size))
    check_coverage(manifest, in_order=order)
    inside = any(manifest.files[storage.file].name == INDEX for storage in storages)
    demand(not inside, "placement", f"a storage lies in {INDEX}")


def _check_name(name: str) -> None:
    plain = name.endswith(".safetensors") and not set(name) & set("/\\\0") and len(name.encode()) <= 255
    demand(plain, "file-name", f"{name[:80]!r}")


def check_header(found: bytes, manifest: Manifest, number: int) -> None:
    """A header, or the index, says of every tensor what the manifest says.

    Raises:
        FaultError: ``foreign-header`` where it breaks a rule, ``header-mismatch`` where it says something else.
    """
    file = manifest.files[number]
    if file.name == INDEX:
        homes = {t.name: manifest.files[manifest.storages[t.storage].file].name for t in manifest.tensors}
        demand(_weight_map(found) == homes, "header-mismatch", f"{INDEX} names other files than the manifest")
        return
    stated = []
    for tensor in manifest.tensors:
        storage = manifest.storages[tensor.storage]
        if storage.file == number:
            start = storage.offset - file.header_size
            stated.append((start, start + size_of(tensor), tensor.name, tensor.dtype, tensor.shape))
    same = entries_in(found, file.size) == sorted(stated)
    demand(same, "header-mismatch", f"{file.name} names other tensors or places than the manifest")


def entries_in(header: bytes, file_size: int) -> list[Entry]:
    """The tensors that a header names, in the order in which they lie."""
    stated = int.from_bytes(header[:8], "little")
    whole = len(header) == stated + 8 and stated <= HEADER_AT_MOST
    demand(whole, "foreign-header", f"a header of {stated} bytes where {len(header) - 8} are expected")
    parsed = _json_object(header[8:])
    metadata = parsed.pop("__metadata__", {})
    texts = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    demand(texts, "foreign-header", "__metadata__ is not text by key")
    entries = sorted(_entry(name, value) for name, value in parsed.items())
    reached = 0
    for start, end, name, _, _ in entries:
        demand(start == reached, "foreign-header", f"{name[:80]!r} begins at {start}, expected {reached}")
        reached = end
    demand(len(header) + reached == file_size, "foreign-header", f"the last tensor ends at {len(header) + reached}")
    return entries


def _entry(name: str, value: Any) -> Entry:
    demand(isinstance(value, dict) and set(value) == _FIELDS, "foreign-header", f"the fields of {name[:80]!a}")
    dtype, shape, offsets = value["dtype"], _integers(value["shape"]), _integers(value["data_offsets"])
    known = isinstance(dtype, str) and dtype in ADOPTED
    demand(known, "foreign-header", f"the dtype {str(dtype)[:40]!a}")
    demand(len(shape) <= AXES_AT_MOST and len(offsets) == 2, "foreign-header", f"shape or offsets of {name[:80]!a}")
    demand(len(_utf8(name)) <= NAME_AT_MOST, "foreign-header", f"a name of {len(name)} characters")
    if dtype == "F4":
        demand(bool(shape) and shape[-1] % 2 == 0, "foreign-header", f"F4 of shape {shape}")
        shape = (*shape[:-1], shape[-1] // 2)
    start, end = offsets
    size = prod(shape) * SIZES[ADOPTED[dtype]]
    demand(end - start == size, "foreign-header", f"{name[:80]!a} has {end - start} bytes, its shape {size}")
    return start, end, name, ADOPTED[dtype], shape


def _integers(value: Any) -> tuple[int, ...]:
    right = isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    demand(right, "foreign-header", f"{str(value)[:40]!a} is no list of integers from 0 to 2^63 - 1")
    return tuple(value)


def _utf8(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise FaultError("foreign-header", f"the name {name[:80]!a} has a lone surrogate") from None


def _weight_map(content: bytes) -> dict[str, str]:
    found = _json_object(content).get("weight_map")
    texts = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    if not isinstance(found, dict) or not texts:
        raise FaultError("foreign-header", f"{INDEX} has no weight_map of text by key")
    return found


def _json_object(text: bytes) -> dict[str, Any]:
    for sign, most in _SIGNS_AT_MOST.items():
        demand(text.count(sign) <= most, "foreign-header", f"more than {most} times {sign.decode()}")
    demand(text.startswith(b"{"), "foreign-header", f"begins with {text[:8]!r}")
    try:
        found: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=_pairs, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise FaultError("foreign-header", f"no JSON object: {str(error)[:80]}") from None
    return found


def _integer(digits: str) -> int:
    demand(digits != "-0", "foreign-header", "-0 is no integer from 0 on")
    return int(digits)


def _pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    demand(len(found) == len(pairs), "foreign-header", "a key stands twice")
    return found
