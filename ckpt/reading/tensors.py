"""The tensors of an opened checkpoint: views of its bytes, and boxes that are copied out of them.

A tensor that lies in pieces has no memory of its own in the files: it is put together when it is asked for, and boxes
of it are copied from the pieces they meet. Chunks are proved before they are used, each once, where that was asked for.
"""

import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ckpt.disk.folder import forget
from ckpt.format.boxes import Box, chunks_under, slabs, whole
from ckpt.format.digests import CHUNK_BYTES
from ckpt.format.dtypes import bits, torch_dtype
from ckpt.format.records import PieceRecord, TensorRecord, contiguous_strides, is_permuted
from ckpt.reading.payload import Algorithm, Payload, faults_in_storage
from ckpt.saving.memory import BLOCK_BYTES, memory_of, rejoin

_SLAB_BYTES = 4 * CHUNK_BYTES  # of a tensor that is put together to be written: it is joined and cut on its way

T = TypeVar("T")


class Tensors:
    """Gives out tensors of a payload.

    Tensors that shared memory share it again, as long as they come from one of these.
    """

    def __init__(self, payload: Payload, *, algorithm: Algorithm | None, device: torch.device | None = None) -> None:
        """Look at a payload.

        Args:
            payload: What was opened.
            algorithm: How chunks are compared with their digests when they are first touched; None: not at all.
            device: Where whole tensors go; the host unless stated.
        """
        self._payload, self._algorithm, self._device = payload, algorithm, device or torch.device("cpu")
        self._proved: set[tuple[int, int]] = set()
        self._bases: dict[int, Tensor] = {}
        self._tied: dict[int, Tensor] = {}

    def whole(self, record: TensorRecord) -> Tensor:
        """One tensor: a view of its storage's one base; put together when it lies in pieces.

        Raises:
            CorruptChunkError: a chunk differs from the manifest.
        """
        if record.name in self._payload.manifest.pieces_of:
            return self._assembled(record)
        self._prove_bytes(record.storage, record.offset, record.offset + record.extent_bytes)
        return self._viewed(record)

    def rows(self, record: TensorRecord, index: int | slice) -> Tensor:
        """Rows of one tensor, as indexing its first dimension gives them."""
        if not isinstance(index, slice):
            index = operator.index(index)  # of NumPy's and torch's integers, too
        try:
            rows = range(record.shape[0])[index]
        except IndexError:
            raise IndexError(f"'{record.name}' has the shape {record.shape}; expected an index of a row") from None
        touched = rows if isinstance(rows, range) else range(rows, rows + 1)
        if record.name in self._payload.manifest.pieces_of:
            return self._rows_of_pieces(record, touched)[
                0 if isinstance(index, int) else slice(None, None, touched.step)
            ]
        if record.is_contiguous and len(touched):
            row = record.strides[0] * record.item_bytes
            first, last = min(touched[0], touched[-1]), max(touched[0], touched[-1])
            self._prove_bytes(record.storage, record.offset + first * row, record.offset + (last + 1) * row)
        else:
            self._prove_bytes(record.storage, record.offset, record.offset + record.extent_bytes)
        return self._viewed(record)[index]

    def _rows_of_pieces(self, record: TensorRecord, touched: range) -> Tensor:
        """From the first to the last of these rows."""
        first, last = (min(touched), max(touched)) if touched else (0, -1)
        box = Box((first, *(0 for _ in record.shape[1:])), (last + 1 - first, *record.shape[1:]))
        made = torch.empty(box.sizes, dtype=torch_dtype(record.dtype), device=self._device)
        self.box(record, box, made)
        return made

    def prove(self, record: TensorRecord, box: Box) -> None:
        """Compare the chunks under a box with their digests: only these, where the tensor lies in rows.

        Raises:
            CorruptChunkError: a chunk differs from the manifest.
        """
        pieces = self._payload.manifest.pieces_of.get(record.name)
        for held, part in _parts(pieces, box) if pieces is not None else ():
            self._prove(held.storage, chunks_under(part, _box(held), item_bytes=record.item_bytes))
        if pieces is None and record.is_contiguous and 0 not in box.sizes:
            outer = whole(record.shape)
            self._prove(record.storage, chunks_under(box, outer, item_bytes=record.item_bytes, shift=record.offset))
        elif pieces is None:
            self._prove_bytes(record.storage, record.offset, record.offset + record.extent_bytes)

    def box(self, record: TensorRecord, box: Box, into: Tensor) -> None:
        """Copy a box of a tensor, proved before.

        Args:
            record: Which tensor.
            box: Which elements.
            into: Gets them; of this dtype and shape, on any device, of any strides.

        Raises:
            CorruptChunkError: as :meth:`prove`; nothing was copied.
        """
        self.prove(record, box)
        pieces = self._payload.manifest.pieces_of.get(record.name)
        for held, part in _parts(pieces, box) if pieces is not None else ():
            rows = self._rows(held.storage, record.dtype, held.sizes)
            bits(into[part.within(box)]).copy_(bits(rows[part.within(_box(held))]))
        if pieces is None:
            bits(into).copy_(bits(self._viewed(record)[box.within(whole(record.shape))]))

    def stored(self, storage: int) -> Iterator[memoryview]:
        """A storage as it lies, in blocks of whole chunks, each proved; its pages are let go of."""
        view = self._payload.storage(storage)

        def block_at(start: int) -> memoryview:
            block = view[start : start + BLOCK_BYTES]
            self._prove(storage, [range(start // CHUNK_BYTES, -(-(start + len(block)) // CHUNK_BYTES))])
            return block

        for block in _ahead(block_at, range(0, len(view), BLOCK_BYTES)):
            yield block
            forget(block)

    def in_rows(self, record: TensorRecord) -> Iterator[memoryview]:
        """The elements of a tensor in pieces, row-major, in blocks of whole chunks."""
        boxes = slabs(record.shape, at_most=max(_SLAB_BYTES // record.item_bytes, 1))
        yield from rejoin(_ahead(partial(self._slab, record), boxes))
        for storage in self._payload.manifest.storages_of(record.name):
            forget(self._payload.storage(storage))

    def _slab(self, record: TensorRecord, box: Box) -> memoryview:
        slab = torch.empty(box.sizes, dtype=torch_dtype(record.dtype))
        self.box(record, box, slab)
        return memory_of(bits(slab))

    def _prove_bytes(self, storage: int, start: int, end: int) -> None:
        if self._algorithm is None:
            return
        users = self._payload.manifest.users[storage]
        if is_permuted(users[0], len(users)):
            start, end = 0, self._payload.manifest.storages[storage].size_bytes
        self._prove(storage, [range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))])

    def _prove(self, storage: int, chunks: Iterable[range]) -> None:
        if self._algorithm is None:
            return
        for chunk in (number for run in chunks for number in run):
            if (storage, chunk) not in self._proved:
                for fault in faults_in_storage(self._payload, storage, self._algorithm, chunks=range(chunk, chunk + 1)):
                    raise fault
                self._proved.add((storage, chunk))

    def _assembled(self, record: TensorRecord) -> Tensor:
        tied = len(self._payload.manifest.users[record.storage]) > 1
        if record.storage in self._tied:
            return self._tied[record.storage].detach()
        made = torch.empty(record.shape, dtype=torch_dtype(record.dtype), device=self._device)
        self.box(record, whole(record.shape), made)
        if tied:
            self._tied[record.storage] = made
        return made

    def _viewed(self, record: TensorRecord) -> Tensor:
        """A view of the storage's base; of a row-major copy of a permuted tensor, the tensor in its layout."""
        dtype, users = torch_dtype(record.dtype), len(self._payload.manifest.users[record.storage])
        if users == 1 and record.is_contiguous and self._device.type == "cpu" and record.storage not in self._bases:
            alone = _alone(self._payload.storage(record.storage), dtype, record)
            if alone is not None:
                return alone
        base = self._base(record.storage)
        if is_permuted(record, users):
            rows = _view(base, dtype, 0, record.shape, contiguous_strides(record.shape))
            placed = torch.empty_strided(record.shape, record.strides, dtype=dtype, device=base.device)
            bits(placed).copy_(bits(rows))
            return placed
        return _view(base, dtype, record.offset // record.item_bytes, record.shape, record.strides)

    def _base(self, storage: int) -> Tensor:
        if storage not in self._bases:
            view = self._payload.storage(storage)
            base = torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)
            widest = max(record.item_bytes for record in self._payload.manifest.users[storage])
            aligned = base if base.data_ptr() % widest == 0 else base.clone()
            self._bases[storage] = aligned.to(self._device)
        return self._bases[storage]

    def _rows(self, storage: int, dtype: str, sizes: Sequence[int]) -> Tensor:
        """A piece as it lies, on the host."""
        flat = torch.frombuffer(self._payload.storage(storage), dtype=torch.uint8)
        wanted = torch_dtype(dtype)
        aligned = flat if flat.data_ptr() % wanted.itemsize == 0 else flat.clone()
        return aligned.view(wanted).view(tuple(sizes))


def _ahead(work: Callable[[T], memoryview], items: Iterable[T]) -> Iterator[memoryview]:
    """What becomes of each item, in order; while one is used, all cores work at the next ones."""
    todo, cores = list(items), os.cpu_count() or 1
    if len(todo) < 2:
        yield from map(work, todo)
        return
    with ThreadPoolExecutor(cores, thread_name_prefix="ckpt-read") as pool:
        waiting: deque[Future[memoryview]] = deque()
        for item in todo:
            waiting.append(pool.submit(work, item))
            if len(waiting) > cores:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def _box(piece: PieceRecord) -> Box:
    return Box(piece.offsets, piece.sizes)


def _parts(pieces: Iterable[PieceRecord], box: Box) -> Iterator[tuple[PieceRecord, Box]]:
    """The pieces that a box meets, and where it meets them."""
    for piece in pieces:
        part = box.meet(_box(piece))
        if part is not None:
            yield piece, part


def _alone(view: memoryview, dtype: torch.dtype, record: TensorRecord) -> Tensor | None:
    """The tensor over all of its storage, without a base between; None when it is empty or not aligned."""
    if not record.size_bytes:
        return None
    flat = torch.frombuffer(view, dtype=dtype)
    return flat.view(record.shape) if flat.data_ptr() % record.item_bytes == 0 else None


def _view(base: Tensor, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), offset, shape, strides)
