"""Compose deltas without their base, as far as :mod:`ckpt.deltas.lineage` can tell what becomes of each chunk.

A frame that nothing has met goes over byte for byte, its SHA-256 checked; differences that met are added up; other
chunks that are known are written whole, proved by the target's digests. Where a chunk is lost, the base is asked for.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

from ckpt.deltas.chaining import Chain, Group, chained, groups_of
from ckpt.deltas.codecs import codec
from ckpt.deltas.codecs.integers import add
from ckpt.deltas.delta import Action, Delta, Frame, Operation
from ckpt.deltas.lineage import Chunk, Kind, Layer, Piece, Told, followed, layers_of
from ckpt.deltas.made import ADDITIVE, Decoded, Run
from ckpt.deltas.patches import Patches
from ckpt.deltas.sides import Bytes
from ckpt.deltas.writer import FRAME_CHUNKS
from ckpt.disk.hashing import Progress
from ckpt.errors import BaseNeededError, CorruptFrameError
from ckpt.format.digests import CHUNK_BYTES, Chunks, chunk_range, chunks_of, sha256, text


def compose(
    chain: Sequence[Patches],
    file: BinaryIO,
    codecs: Collection[str],
    progress: Progress | None,
    *,
    ends: Patches | None = None,
) -> Delta:
    """The delta that does what all do one after the other; its frames go to ``file``.

    Args:
        chain: Deltas, each made for the target of the one before it.
        file: The patch to be.
        codecs: Those that may be used for what is encoded anew.
        ends: The delta between both ends, where the base was there to make it: what is no larger so is taken from it.
        progress: Called with (bytes of storages done, bytes in all).

    Raises:
        BaseNeededError: a chunk is lost; the frame and the delta that need the base are named.
        CorruptFrameError: a frame is not what was written.
        FormatError: two deltas do not fit each other.
    """
    first, last = chain[0].delta, chain[-1].delta
    composer = _Composer(
        file=file,
        deltas=[Decoded(patches) for patches in chain],
        adding=[name for name in ADDITIVE if name in codecs],
        may_chain="chain" in codecs,
        base_root=first.base_root,
    )
    done, total = 0, last.target.payload_bytes
    told = [_stored(each.delta) for each in chain]
    direct = None if ends is None else _Direct(ends, _stored(ends.delta))
    storages = []
    for index, chunks in enumerate(last.target.storages):
        storages.append(composer.smallest(told, index, direct))
        done += chunks.size_bytes
        if progress is not None:
            progress(done, total)
    told = [_attached(each.delta) for each in chain]
    direct = None if ends is None else _Direct(ends, _attached(ends.delta))
    attachments = [composer.smallest(told, index, direct) for index in range(len(last.attachments))]
    target = replace(
        last.target,
        storages=tuple(chunks for _, chunks in storages),
        attachments=tuple(
            replace(item, chunks=chunks) for item, (_, chunks) in zip(last.target.attachments, attachments, strict=True)
        ),
    )
    return replace(
        last,
        base_root=first.base_root,
        target=target,
        storages=tuple(operation for operation, _ in storages),
        attachments=tuple(operation for operation, _ in attachments),
    )


def _stored(delta: Delta) -> list[Told]:
    return list(zip(delta.storages, delta.target.storages, strict=True))


def _attached(delta: Delta) -> list[Told]:
    return [
        (operation, item.chunks) for operation, item in zip(delta.attachments, delta.target.attachments, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Direct:
    """The delta between both ends, and what it says of storages, or of attachments."""

    patches: Patches
    told: Sequence[Told]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composer:
    """Writes the frames of composed operations."""

    file: BinaryIO
    deltas: Sequence[Decoded]
    adding: Sequence[str]
    may_chain: bool
    base_root: str

    def smallest(self, told: Sequence[Sequence[Told]], index: int, direct: _Direct | None) -> Told:
        """The operation that makes number ``index`` of the last target, and the digests that it states.

        It is the first of these ways that is hardly larger than the parts, or else the smallest: as between both ends,
        where that is known; composed; the frames themselves, chained where they met.
        """
        base, layers = layers_of(self.deltas, told, index)
        size = told[-1][index][1].size_bytes
        parts = sum(frame.encoded_size for layer in layers for frame in layer.operation.frames)
        ways: list[Callable[[], Told]] = []
        if direct is not None:
            ways.append(partial(self._copied, direct, index))
        kinds = (False, True) if self.may_chain else (False,)
        ways += [partial(self._composed, base, layers, size, chaining=chaining) for chaining in kinds]
        return self._first_within(parts + parts // 1000, ways)

    def _first_within(self, most_bytes: int, ways: Sequence[Callable[[], Told]]) -> Told:
        """The first way that writes no more than that, or else the one that writes least."""
        start, sizes, needed = self.file.tell(), dict[int, int](), list[BaseNeededError]()
        for number, way in enumerate(ways):
            try:
                found = way()
            except BaseNeededError as error:
                needed.append(error)
            else:
                sizes[number] = self.file.tell() - start
                if sizes[number] <= most_bytes:
                    return found
            self._back_to(start)
        if not sizes:
            raise needed[0]
        return ways[min(sizes, key=lambda number: sizes[number])]()

    def _back_to(self, place: int) -> None:
        self.file.seek(place)
        self.file.truncate()

    def _copied(self, direct: _Direct, index: int) -> Told:
        operation, chunks = direct.told[index]
        frames = tuple(self._put(direct.patches.encoded(frame), frame) for frame in operation.frames)
        return replace(operation, frames=frames), chunks

    def _composed(self, base: int, layers: Sequence[Layer], size: int, *, chaining: bool) -> Told:
        if not layers:
            return Operation(action=Action.COPY, base=base), Chunks(size_bytes=size, crc32=b"", sha256=b"")
        chunks, digests = followed(layers)
        met = [number for number, chunk in sorted(chunks.items()) if len(chunk.written) > 1]
        groups = groups_of(chunks, met) if chaining else {}
        action = Action.NEW if layers[0].operation.action is Action.NEW else Action.PATCH
        frames = tuple(self._frames(chunks, groups, layers, digests, size))
        stated = chunks_of((digests[number] for number in sorted(chunks)), size_bytes=size)
        return Operation(action=action, base=base, frames=frames), stated

    def _frames(
        self,
        chunks: Mapping[int, Chunk],
        groups: Mapping[int, Group],
        layers: Sequence[Layer],
        digests: Mapping[int, tuple[int, bytes]],
        size: int,
    ) -> Iterator[Frame]:
        known, reached = _bytes_of(layers), 0
        for number in sorted(chunks):
            chunk = chunks[number]
            if number < reached:
                continue
            group = groups.get(number)
            link = chained(group, layers) if group is not None and group.chunks.start == number else None
            if group is not None and link is not None:
                reached = group.chunks.stop
                yield self._put(link.encoded, _chain_frame(group, link, size))
                continue
            if _is_whole(number, chunks):
                yield self._as_it_is(chunk.pieces[0])
                reached = chunk.pieces[0].frame.chunks.stop
                continue
            if chunk.kind is not Kind.KNOWN and not (chunk.kind is Kind.SUM and self.adding):
                raise self._needed(chunk.pieces[-1])
            reached = _end(number, chunks)
            start, end = number * CHUNK_BYTES, min(reached * CHUNK_BYTES, size)
            if chunk.kind is Kind.KNOWN:
                yield self._known(known[start:end], start, [digests[each] for each in range(number, reached)])
            else:
                yield self._added([chunks[each] for each in range(number, reached)], start, end)

    def _as_it_is(self, piece: Piece) -> Frame:
        return self._put(piece.decoded.patches.encoded(piece.frame), piece.frame)

    def _known(self, data: memoryview, start: int, digests: Sequence[tuple[int, bytes]]) -> Frame:
        for place, (_, expected) in enumerate(digests):
            low, high = chunk_range(place, len(data))
            if (found := sha256(data[low:high])) != expected:
                raise CorruptFrameError(
                    delta=self.deltas[-1].patches.folder,
                    frame=f"what makes bytes {start + low}–{start + high - 1}",
                    found=text(found),
                    expected=text(expected),
                )
        encoded = codec("raw").encode(memoryview(b""), data, width=1)
        return self._put(encoded, _frame("raw", start, len(data), base_size=0, width=1))

    def _added(self, chunks: Sequence[Chunk], start: int, end: int) -> Frame:
        """A frame of differences that were added up, by the codec that is smallest."""
        width = chunks[0].pieces[0].frame.width
        total = bytearray(end - start)
        for place, chunk in enumerate(chunks):
            low, high = chunk_range(place, end - start)
            for piece in chunk.pieces:
                shift = start - piece.frame.offset
                difference = piece.decoded.difference(piece.frame)[low + shift : high + shift]
                add(memoryview(total)[low:high], difference, width=width)
        zeros, target = memoryview(bytes(end - start)), memoryview(total)
        encoded = {name: codec(name).encode(zeros, target, width=width) for name in self.adding}
        name = min(self.adding, key=lambda name: len(encoded[name]))
        return self._put(encoded[name], _frame(name, start, end - start, base_size=end - start, width=width))

    def _put(self, encoded: bytes, frame: Frame) -> Frame:
        offset = self.file.tell()
        self.file.write(encoded)
        return replace(
            frame, patch=0, patch_offset=offset, encoded_size=len(encoded), sha256=sha256(encoded),
            reversible=codec(frame.codec).REVERSIBLE,
        )  # fmt: skip

    def _needed(self, piece: Piece) -> BaseNeededError:
        patches = piece.decoded.patches
        found = f"{patches.name_of(piece.frame)} (by '{piece.frame.codec}') meets what a delta before it changed"
        return BaseNeededError(delta=patches.folder, found=found, expected=self.base_root)


def _bytes_of(layers: Sequence[Layer]) -> Bytes:
    """The bytes of the last target, of which only known chunks may be asked for."""
    made: Bytes = memoryview(b"")
    for layer in layers:
        made = Run(layer.operation, layer.chunks.size_bytes, made, layer.decoded)
    return made


def _is_whole(number: int, chunks: Mapping[int, Chunk]) -> bool:
    """Whether a frame begins here that nothing has met."""
    chunk = chunks[number]
    if len(chunk.pieces) != 1 or chunk.kind is Kind.LOST or chunk.pieces[0].frame.chunks.start != number:
        return False
    others = [chunks.get(each) for each in chunk.pieces[0].frame.chunks]
    return all(each is not None and (each.kind, each.pieces) == (chunk.kind, chunk.pieces) for each in others)


def _end(first: int, chunks: Mapping[int, Chunk]) -> int:
    """Where a frame ends that begins with this chunk: others that are told alike join it."""
    end = first + 1
    while end < first + FRAME_CHUNKS and end in chunks and not _is_whole(end, chunks):
        if not _alike(chunks[first], chunks[end]):
            break
        end += 1
    return end


def _alike(one: Chunk, other: Chunk) -> bool:
    if one.kind is not other.kind or one.kind is Kind.LOST:
        return False
    return one.kind is Kind.KNOWN or one.pieces[0].frame.width == other.pieces[0].frame.width


def _chain_frame(group: Group, link: Chain, size: int) -> Frame:
    start = group.chunks.start * CHUNK_BYTES
    frame = _frame("chain", start, min(group.chunks.stop * CHUNK_BYTES, size) - start, base_size=0, width=1)
    return replace(frame, base_offset=link.base_offset, base_size=link.base_size)


def _frame(name: str, offset: int, size: int, *, base_size: int, width: int) -> Frame:
    return Frame(
        codec=name,
        offset=offset,
        size=size,
        base_offset=offset if base_size else 0,
        base_size=base_size,
        width=width,
        patch=0,
        patch_offset=0,
        encoded_size=0,
        sha256=b"",
        reversible=False,
    )
