"""Copies that good bytes may be taken from: a checkpoint, whose manifest says what lies where, or plain safetensors.

Of a checkpoint, chunks are found by their SHA-256, so it may be sharded in another way, or be another version that
shares them; of plain safetensors, by the names of the tensors. Whatever is found is proved before it is handed out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ckpt.adoption.files import names_in
from ckpt.deltas.wire import delta_from_bytes
from ckpt.disk.byte_ranges import ByteRanges, LocalFiles, RemoteFiles
from ckpt.errors import SourceError
from ckpt.format.adopted_header import LENGTH_BYTES, Entry, header_length, parse_header
from ckpt.format.digests import CHUNK_BYTES, Chunks, chunk_range, sha256
from ckpt.format.manifest import Manifest
from ckpt.format.names import ADOPTED_SUFFIX, DELTA_NAME, INDEX_NAME, MANIFEST_NAME
from ckpt.format.records import TensorRecord, is_permuted
from ckpt.format.rules import check
from ckpt.format.wire import MAX_FILE_BYTES, manifest_from_bytes

_TOGETHER_BYTES = 8 * CHUNK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of a file that have one digest: a chunk or a header.

    ``storage`` is the one that a chunk is of, and ``shift`` its first byte there; ``known`` are the bytes themselves,
    where the manifest implies them.
    """

    start: int
    end: int
    sha256: bytes
    storage: int | None = None
    shift: int = 0
    known: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """Where bytes of a piece lie in the copy; ``at`` counts from the piece's first byte."""

    name: str
    start: int
    end: int
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodCopy:
    """What lies where in a copy: by digest, and by tensor name; ``manifest`` holds its own in bytes, if it has one."""

    files: ByteRanges
    by_digest: Mapping[bytes, _Run]
    by_name: Mapping[str, tuple[str, int, Entry]]
    manifest: bytes | None
    _views: dict[int, dict[int, list[TensorRecord]]] = field(default_factory=dict)

    def fetch(self, pieces: Sequence[Piece], wanted: Manifest | None) -> Iterator[tuple[Piece, bytes]]:
        """The pieces of the ``wanted`` checkpoint that the copy has, each proved by SHA-256; neighbours come together.

        Those of a delta are found by their digests alone.

        Raises:
            SourceError: the copy cannot be read.
        """
        located = [(piece, self._locate(piece, wanted)) for piece in pieces]
        runs = sorted({run for _, found in located for run in found}, key=lambda run: (run.name, run.start, run.end))
        read = _Together(self.files, runs)
        for piece, found in located:
            data = bytearray(piece.known or bytes(piece.end - piece.start))
            for run in found:
                data[run.at : run.at + run.end - run.start] = read.bytes_of(run)
            if sha256(data) == piece.sha256:
                yield piece, bytes(data)

    def _locate(self, piece: Piece, wanted: Manifest | None) -> list[_Run]:
        if piece.known is not None:
            return []
        if piece.sha256 in self.by_digest:
            return [self.by_digest[piece.sha256]]
        if wanted is None or piece.storage is None or not self.by_name:
            return []
        if piece.storage not in self._views:
            self._views[piece.storage] = self._by_chunk(wanted.users[piece.storage])
        runs = []
        for tensor in self._views[piece.storage].get(piece.shift // CHUNK_BYTES, ()):
            name, base, entry = self.by_name[tensor.name]
            offset = tensor.offset - piece.shift
            low, high = max(offset, 0), min(offset + tensor.size_bytes, piece.end - piece.start)
            if low < high:
                start = base + entry.start - offset
                runs.append(_Run(name, start + low, start + high, low))
        return runs

    def _by_chunk(self, users: Sequence[TensorRecord]) -> dict[int, list[TensorRecord]]:
        """The tensors of a storage that lie in the copy as they do here, by the chunks that they touch."""
        found: dict[int, list[TensorRecord]] = {}
        for tensor in users:
            *_, entry = self.by_name.get(tensor.name, (None,))
            lies_alike = tensor.is_contiguous or is_permuted(tensor, len(users))
            if entry is not None and lies_alike and (entry.dtype, entry.shape) == (tensor.dtype, tensor.shape):
                end = tensor.offset + tensor.size_bytes
                for chunk in range(tensor.offset // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
                    found.setdefault(chunk, []).append(tensor)
        return found


class _Together:
    """Reads runs that lie side by side with one request, when one of them is asked for."""

    def __init__(self, files: ByteRanges, runs: Sequence[_Run]) -> None:
        self._files = files
        self._groups: dict[_Run, _Run] = {}
        self._read: dict[_Run, bytes] = {}
        group: list[_Run] = []
        for run in [*runs, None]:
            near = group and run and group[-1].name == run.name and run.start <= group[-1].end
            if group and not (near and run and run.end - group[0].start <= _TOGETHER_BYTES):
                whole = _Run(group[0].name, group[0].start, max(item.end for item in group))
                self._groups |= dict.fromkeys(group, whole)
                group = []
            group += [run] if run else []

    def bytes_of(self, run: _Run) -> bytes:
        whole = self._groups[run]
        if whole not in self._read:
            self._read[whole] = self._files.read(whole.name, whole.start, whole.end)
        return self._read[whole][run.start - whole.start : run.end - whole.start]


@contextmanager
def good_copy(source: Path | str) -> Iterator[GoodCopy]:
    """Open a copy.

    Args:
        source: A checkpoint folder; a ``.safetensors`` file, or a folder of them with an index; or the ``http(s)``
            address of a checkpoint folder or a ``.safetensors`` file.

    Raises:
        SourceError: nothing there, or it cannot be read.
        FormatError: its manifest or a header breaks a rule.
    """
    text = str(source)
    files: ByteRanges
    if "://" in text:
        files, names = _remote(text)
    else:
        path = Path(source)
        files = LocalFiles(path if path.is_dir() else path.parent)
        plain = path.is_dir() and not (path / MANIFEST_NAME).exists()
        names = (names_in(path) if plain else []) if path.is_dir() else [path.name]
    try:
        yield _plain(files, names) if names else _checkpoint(files, text)
    finally:
        files.close()


@contextmanager
def good_delta(source: Path | str) -> Iterator[GoodCopy]:
    """Open a copy of a delta: its folder, or the ``http(s)`` address of it.

    Raises:
        SourceError: nothing there, or it cannot be read.
        FormatError: its ``delta.pb`` breaks a rule.
    """
    text = str(source)
    files: ByteRanges = _remote(text)[0] if "://" in text else LocalFiles(Path(source))
    try:
        delta = delta_from_bytes(_read_whole(files, DELTA_NAME), text)
        places = {
            frame.sha256: _Run(
                delta.patches[frame.patch].name, frame.patch_offset, frame.patch_offset + frame.encoded_size
            )
            for frame in delta.frames()
        }
        yield GoodCopy(files=files, by_digest=places, by_name={}, manifest=None)
    finally:
        files.close()


def _read_whole(files: ByteRanges, name: str) -> bytes:
    size = files.size(name)
    if size > MAX_FILE_BYTES:
        raise SourceError(name, f"{size} bytes", f"at most {MAX_FILE_BYTES}")
    return files.read(name, 0, size)


def _remote(text: str) -> tuple[RemoteFiles, list[str]]:
    url = urlsplit(text)
    try:
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise SourceError(f"{url.scheme}://…", "no address of that form", "http:// or https:// and a host")
    folder, _, name = url.path.rpartition("/")
    if name.endswith(ADOPTED_SUFFIX):
        return RemoteFiles(url._replace(path=f"{folder}/").geturl()), [unquote(name)]
    return RemoteFiles(url._replace(path=url.path.rstrip("/") + "/").geturl()), []


def _checkpoint(files: ByteRanges, source: str) -> GoodCopy:
    data = _read_whole(files, MANIFEST_NAME)
    manifest = manifest_from_bytes(data, MANIFEST_NAME)
    check(manifest)
    places: dict[bytes, _Run] = {}
    for record in manifest.files:
        places[record.header_sha256] = _Run(record.name, 0, record.header_bytes)
    for chunks, place in zip(manifest.storages, manifest.placements, strict=True):
        places |= _places(chunks, manifest.files[place.file].name, place.offset)
    for item in manifest.attachments:
        places |= _places(item.chunks, item.path, 0)
    return GoodCopy(files=files, by_digest=places, by_name={}, manifest=data)


def _places(chunks: Chunks, name: str, offset: int) -> dict[bytes, _Run]:
    ranges = ((chunk, chunk_range(chunk, chunks.size_bytes)) for chunk in range(chunks.count))
    return {chunks.sha256_of(chunk): _Run(name, offset + start, offset + end) for chunk, (start, end) in ranges}


def _plain(files: ByteRanges, names: Sequence[str]) -> GoodCopy:
    headers: dict[bytes, _Run] = {}
    tensors: dict[str, tuple[str, int, Entry]] = {}
    for name in names:
        size = files.size(name)
        length = size
        if name != INDEX_NAME:
            start = files.read(name, 0, min(LENGTH_BYTES, size))
            length = header_length(start, size_bytes=size, where=name)
        header = files.read(name, 0, length)
        headers[sha256(header)] = _Run(name, 0, length)
        if name != INDEX_NAME:
            entries = parse_header(header, size_bytes=size, where=name)
            tensors |= {entry.name: (name, length, entry) for entry in entries}
    return GoodCopy(files=files, by_digest=headers, by_name=tensors, manifest=None)


def pieces_of(manifest: Manifest, index: int) -> Iterator[Piece]:
    """The chunks of a storage, as pieces of its file."""
    chunks, offset = manifest.storages[index], manifest.placements[index].offset
    for chunk in range(chunks.count):
        start, end = chunk_range(chunk, chunks.size_bytes)
        yield Piece(start=offset + start, end=offset + end, sha256=chunks.sha256_of(chunk), storage=index, shift=start)
