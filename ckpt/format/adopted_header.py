"""Safetensors files that others wrote: what a header may say, and whether a manifest says the same.

An adopted file keeps the header it came with, so a reader cannot derive it from the manifest byte by byte. It is
parsed instead, by rules at least as strict as those of safetensors itself, and what it says of every tensor (name,
dtype, shape, place) is compared with the manifest. ``__metadata__`` is information and never trusted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ckpt.errors import FormatError
from ckpt.format.bounds import MAX_RECORDS
from ckpt.format.dtypes import BY_SAFETENSORS
from ckpt.format.manifest import Manifest
from ckpt.format.names import INDEX_NAME, MAX_NAME_BYTES, check_adopted_name
from ckpt.format.records import MAX_DIMENSIONS

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # as safetensors has it
MAX_TENSORS = MAX_RECORDS // 4  # a manifest has a storage, a tensor and two nodes for each
# Counted before parsing, since text of two bytes becomes an object of sixty: at most these many in a header.
_MOST = {b"{": MAX_TENSORS + 2, b"[": 2 * MAX_TENSORS, b",": 16 * MAX_TENSORS}
_FIELDS = {"dtype", "shape", "data_offsets"}

Header = tuple["Entry", ...] | Mapping[str, str]  # of a safetensors file, or the weight map of an index


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One tensor of a file: where it lies in the payload (end excluded), and what it is.

    ``dtype`` and ``shape`` are those of the checkpoint format: of a packed dtype, the shape counts whole bytes.
    """

    start: int
    end: int
    name: str
    dtype: str
    shape: tuple[int, ...]


def header_length(data: bytes | memoryview, *, size_bytes: int, where: str) -> int:
    """Bytes before the payload, of a file of ``size_bytes`` that begins with ``data``.

    Raises:
        FormatError: the file ends inside its header, or the header is larger than safetensors allows.
    """
    stated = int.from_bytes(data[:LENGTH_BYTES], "little")
    if size_bytes < LENGTH_BYTES or stated > min(MAX_HEADER_BYTES, size_bytes - LENGTH_BYTES):
        raise FormatError(
            where,
            f"a header of {stated} bytes in a file of {size_bytes}",
            f"one of at most {MAX_HEADER_BYTES} inside the file",
        )
    return LENGTH_BYTES + stated


def parse_header(data: bytes | memoryview, *, size_bytes: int, where: str) -> tuple[Entry, ...]:
    """The tensors of a safetensors file, in the order in which they lie.

    Args:
        data: Its header, length included.
        size_bytes: Of the whole file.
        where: The file, for messages.

    Raises:
        FormatError: the header breaks a rule; see ``docs/formats/checkpoint.md``.
    """
    if header_length(data, size_bytes=size_bytes, where=where) != len(data):
        raise FormatError(where, "a header of another length", f"{len(data)} bytes")
    header = _object(bytes(data[LENGTH_BYTES:]), where)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{where}, '__metadata__'", "something else", "text by key")
    entries = sorted(_entry(name, value, where) for name, value in header.items())
    reached = 0
    for entry in entries:
        if entry.start != reached:
            found = f"a hole before byte {entry.start}" if entry.start > reached else f"an overlap at {entry.start}"
            raise FormatError(f"{where}, '{entry.name[:80]}'", found, "tensors end to end in the payload")
        reached = entry.end
    if len(data) + reached != size_bytes:
        raise FormatError(where, f"a file of {size_bytes} bytes", f"{len(data) + reached}, where its last tensor ends")
    return tuple(entries)


def parse_index(data: bytes | memoryview, *, where: str) -> dict[str, str]:
    """Tensor name → file, of a ``model.safetensors.index.json``.

    Raises:
        FormatError: it is no such index, or names a file outside its folder.
    """
    found = _object(bytes(data), where).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise FormatError(where, "no weight_map", "one, of tensor names to file names")
    for name in set(found.values()):
        check_adopted_name(name)
    return found


def _object(text: bytes, where: str) -> dict[str, object]:
    for sign, most in _MOST.items():
        if text.count(sign) > most:
            raise FormatError(where, f"more than {most} times '{sign.decode()}'", "at most as many")
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_pairs, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise FormatError(where, f"JSON that cannot be read ({str(error)[:80]})", "one JSON object") from None
    if not isinstance(found, dict) or not text.startswith(b"{"):
        raise FormatError(where, f"text that begins with {text[:16]!r}", "one JSON object")
    return found


def _whole_number(digits: str) -> int:
    """Refuses -0, which Python takes for a whole number and safetensors' own reader for none."""
    if digits == "-0":
        raise ValueError("-0, which is no whole number")
    return int(digits)


def _pairs(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _entry(name: str, value: object, where: str) -> Entry:
    where = f"{where}, '{name[:80]}'"
    if not isinstance(value, dict) or set(value) != _FIELDS:
        raise FormatError(where, "other fields", ", ".join(sorted(_FIELDS)))
    try:
        long = len(name.encode("utf-8")) > MAX_NAME_BYTES
    except UnicodeEncodeError:
        raise FormatError(where.encode("utf-8", "replace").decode(), "a lone surrogate in a name", "UTF-8") from None
    shape, offsets = _numbers(value["shape"], where), _numbers(value["data_offsets"], where)
    row = BY_SAFETENSORS.get(str(value["dtype"]))
    if row is None:
        raise FormatError(where, f"dtype {str(value['dtype'])[:40]!r}", f"one of {', '.join(BY_SAFETENSORS)}")
    if long or len(shape) > MAX_DIMENSIONS or len(offsets) != 2:
        raise FormatError(where, "a long name, many sizes or no two offsets", "4 KiB, 64 sizes and two offsets at most")
    if row.packed > 1:
        if not shape or shape[-1] % row.packed:
            raise FormatError(where, f"shape {shape} of a packed dtype", f"rows of whole bytes ({row.packed} a byte)")
        shape = (*shape[:-1], shape[-1] // row.packed)
    start, end = offsets
    if end - start != prod(shape) * row.size_bytes:
        raise FormatError(where, f"{end - start} bytes", f"{prod(shape) * row.size_bytes} by its dtype and shape")
    return Entry(start=start, end=end, name=name, dtype=row.name, shape=shape)


def _numbers(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in value):
        raise FormatError(where, f"{str(value)[:40]}", "a list of whole numbers below 2^63")
    return tuple(value)


def stated(manifest: Manifest) -> dict[str, Header]:
    """What the header of each file of an adopted checkpoint has to say: file name → parsed header."""
    entries: list[list[Entry]] = [[] for _ in manifest.files]
    for (tensor,), place in zip(manifest.users, manifest.placements, strict=True):
        start = place.offset - manifest.files[place.file].header_bytes
        entries[place.file].append(Entry(start, start + tensor.size_bytes, tensor.name, tensor.dtype, tensor.shape))
    named = zip(manifest.files, entries, strict=True)
    headers: dict[str, Header] = {record.name: tuple(sorted(own)) for record, own in named}
    if INDEX_NAME in headers:
        headers[INDEX_NAME] = {
            tensor.name: manifest.files[manifest.placements[tensor.storage].file].name for tensor in manifest.tensors
        }
    return headers


def parse(data: memoryview, *, name: str, size_bytes: int) -> Header:
    """What the header of an adopted file, or the index, says; compare it with that of :func:`stated`.

    Raises:
        FormatError: it breaks a rule.
    """
    return (
        parse_index(data, where=name) if name == INDEX_NAME else parse_header(data, size_bytes=size_bytes, where=name)
    )
