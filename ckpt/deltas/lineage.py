"""What deltas in a row make of one storage or attachment, told without their base.

Of each chunk that a frame writes it is followed, from the first delta to the last, what the frames tell of it:

- *known*: its bytes, since they came whole, or were made of such bytes by any codec;
- *sum*: how it differs from the base's chunk, since only codecs that add wrote it; differences add up;
- *alone*: one frame of another codec made it of bytes of the base that nothing before had touched;
- *lost*: a frame needs bytes that only the base and the frames before it make together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from ckpt.deltas.delta import Action, Frame, Operation
from ckpt.deltas.made import Decoded, is_additive
from ckpt.errors import FormatError
from ckpt.format.digests import CHUNK_BYTES, Chunks, chunk_count, chunk_range

Told = tuple[Operation, Chunks]  # what a delta says of one storage or attachment of its target


class Kind(Enum):
    """What is told of a chunk; see the module's head."""

    KNOWN = auto()
    SUM = auto()
    ALONE = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """A frame, the delta that it is of, and the layer."""

    decoded: Decoded
    frame: Frame
    layer: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One that some frame wrote.

    ``pieces`` are the frames that make it of the base's chunk, or of nothing; none where it is known in another way. Of
    a lost one they are the frame that needs the base. ``written`` are all that wrote it since one came whole.
    """

    kind: Kind
    pieces: tuple[Piece, ...] = ()
    written: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """What one delta does, other than to copy."""

    decoded: Decoded
    operation: Operation
    chunks: Chunks


def layers_of(deltas: Sequence[Decoded], told: Sequence[Sequence[Told]], index: int) -> tuple[int, list[Layer]]:
    """Number ``index`` of the last target traced back: which of the base's it comes from, and what was done to it.

    Args:
        deltas: In their order.
        told: What each says of its storages, or of its attachments.
        index: Of the last one's.

    Raises:
        FormatError: a delta names what the target before it does not have.
    """
    layers: list[Layer] = []
    for number in reversed(range(len(deltas))):
        operation, chunks = told[number][index]
        if operation.action is not Action.COPY:
            layers.insert(0, Layer(deltas[number], operation, chunks))
        if operation.action is Action.NEW:
            return 0, layers
        if number:
            _check_source(operation, chunks, told[number - 1])
        index = operation.base
    return index, layers


def _check_source(operation: Operation, chunks: Chunks, before: Sequence[Told]) -> None:
    if operation.base >= len(before):
        raise FormatError("delta.operation", f"base {operation.base}", f"less than {len(before)}")
    size = before[operation.base][1].size_bytes
    if operation.action is Action.COPY and (size != chunks.size_bytes or chunks.count):
        raise FormatError("delta.operation", f"a copy of {size} bytes", f"{chunks.size_bytes} bytes, no digests")


def followed(layers: Sequence[Layer]) -> tuple[dict[int, Chunk], dict[int, tuple[int, bytes]]]:
    """The chunks that some layer wrote, and the CRC-32 and SHA-256 of each, as the last one to write it states.

    Raises:
        FormatError, CorruptFrameError: a layer does not fit the one before it.
    """
    chunks: dict[int, Chunk] = {}
    digests: dict[int, tuple[int, bytes]] = {}
    size: int | None = None
    for depth, layer in enumerate(layers):
        _check_fit(layer, size)
        size = layer.chunks.size_bytes
        count = chunk_count(size)
        before, chunks = chunks, {number: chunk for number, chunk in chunks.items() if number < count}
        for frame in layer.operation.frames:
            chunks |= _written(Piece(layer.decoded, frame, depth), before)
        own = {
            number: (layer.chunks.crc32_of(place), layer.chunks.sha256_of(place))
            for place, number in enumerate(layer.operation.covered())
        }
        digests = {number: pair for number, pair in digests.items() if number < count} | own
    return chunks, digests


def _check_fit(layer: Layer, before: int | None) -> None:
    """Whether frames and digests agree and, where the size before is known, whether it has what is taken of it."""
    operation, size = layer.operation, layer.chunks.size_bytes
    own = set(operation.covered())
    if layer.chunks.count != len(own):
        found = f"{layer.chunks.count} digests"
        raise FormatError("delta.operation", found, f"{len(own)}, one for each chunk that a frame writes")
    if before is None:
        return
    for frame in operation.frames:
        if frame.base_offset + frame.base_size > before:
            end = f"{frame.base_offset + frame.base_size}"
            raise layer.decoded.patches.bad(frame, f"a base of {before} bytes", end)
    for chunk in range(chunk_count(size)) if size != before else ():
        if chunk not in own and chunk_range(chunk, size) != chunk_range(chunk, before):
            raise FormatError(
                "delta.operation", f"chunk {chunk} from no frame", "a frame where the base has no such chunk"
            )


def _written(piece: Piece, before: Mapping[int, Chunk]) -> dict[int, Chunk]:
    """The chunks that a frame writes, given those that were written before."""
    frame = piece.frame
    read = range(frame.base_offset // CHUNK_BYTES, -(-(frame.base_offset + frame.base_size) // CHUNK_BYTES))
    met = [before[number] for number in read if number in before]
    if len(met) == len(read) and all(chunk.kind is Kind.KNOWN for chunk in met):
        chunk = Chunk(Kind.KNOWN, () if read else (piece,))
        return dict.fromkeys(frame.chunks, replace(chunk, written=(*_earlier(met), piece)))
    if is_additive(frame):
        added = {number: _added(before.get(number), piece) for number in frame.chunks}
        return {
            number: replace(chunk, written=(*_earlier([before[number]] if number in before else []), piece))
            for number, chunk in added.items()
        }
    chunk = Chunk(Kind.LOST if met else Kind.ALONE, (piece,), (*_earlier(met), piece))
    return dict.fromkeys(frame.chunks, chunk)


def _earlier(met: Sequence[Chunk]) -> Iterable[Piece]:
    """What wrote some chunks, each frame once."""
    return {(piece.layer, piece.frame.offset): piece for chunk in met for piece in chunk.written}.values()


def _added(chunk: Chunk | None, piece: Piece) -> Chunk:
    if chunk is None:
        return Chunk(Kind.SUM, (piece,))
    if chunk.kind is Kind.SUM and chunk.pieces[0].frame.width == piece.frame.width:
        return Chunk(Kind.SUM, (*chunk.pieces, piece))
    return Chunk(Kind.KNOWN) if chunk.kind is Kind.KNOWN else Chunk(Kind.LOST, (piece,))
