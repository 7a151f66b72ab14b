"""The model thread: the one place where a program runs and where the live slot changes.

One thread per model computes batch after batch; an exchange of slots is a job of the same thread, so it falls between
two batches and each batch is answered by exactly one (root, generation). Rows are joined into a tensor of the bucket's
size, the rest is zero; the answer to each request is its rows alone. When a batch raises, each of its requests is run
again by itself, so one bad item fails alone.

Promises: the generation rises by one with each exchange; a failed exchange leaves the old slot live. What to run next
is decided by ``batcher``, what to exchange by ``updater``.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from serving.codec import Array
from serving.errors import ModelFailedError, ReleaseRefusedError, quote
from serving.protocol import Answer, ModelInfo, TensorInfo
from serving.schedule import LatencyTable, bucket_for
from serving.weights import Slot

MAX_CLASSES = 256  # more columns than this are features, not classes: one time series each would be a burden

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The slot that answers, and its generation."""

    slot: Slot
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSums:
    """Sums over the finite values of the first output; over complete rows for margins and classes."""

    values: int = 0
    nonfinite: int = 0
    total: float = 0.0
    square_total: float = 0.0
    margin_total: float = 0.0
    class_counts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """An answer or an error for each request of a batch, in order, and what the outputs sum to."""

    answers: tuple[Answer | ModelFailedError, ...]
    sums: OutputSums


class Engine:
    """Runs batches on the live slot; use it in a ``with`` block, which ends its thread."""

    def __init__(self, slot: Slot, *, model: ModelInfo, buckets: tuple[int, ...]) -> None:
        self.model = model
        self.buckets = buckets
        self._live = Live(slot=slot, generation=1)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"model-{model.name}")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)

    @property
    def live(self) -> Live:
        """The slot that answers now."""
        return self._live

    async def run(self, batch: Sequence[tuple[Array, ...]], *, bucket: int) -> BatchResult:
        """Compute a batch: for each request its arrays, in the order of the model's inputs."""
        return await self._on_thread(lambda: self._run(batch, bucket=bucket))

    async def exchange(self, slot: Slot) -> float:
        """Make ``slot`` live between two batches; return the seconds for which no batch could start."""
        return await self._on_thread(lambda: self._exchange(slot))

    async def warm(self) -> LatencyTable:
        """Run each bucket once to touch all code and memory, and once more to start the latency table."""
        return await self._on_thread(lambda: warm(self._live.slot, model=self.model, buckets=self.buckets))

    async def _on_thread(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    def _exchange(self, slot: Slot) -> float:
        started_s = time.perf_counter()
        old = self._live
        try:
            slot.runner.swap(slot.prepared)
        except BaseException:
            old.slot.runner.swap(old.slot.prepared)
            raise
        self._live = Live(slot=slot, generation=old.generation + 1)
        return time.perf_counter() - started_s

    def _run(self, batch: Sequence[tuple[Array, ...]], *, bucket: int) -> BatchResult:
        live = self._live
        try:
            outputs = compute(live.slot, batch, model=self.model, bucket=bucket)
        except ModelFailedError as error:
            return self._run_alone(batch) if len(batch) > 1 else BatchResult(answers=(error,), sums=OutputSums())
        answers = []
        start = 0
        for arrays in batch:
            end = start + len(arrays[0])
            answers.append(
                Answer(
                    outputs=tuple(output[start:end] for output in outputs),
                    root=live.slot.root,
                    version=live.slot.version,
                    generation=live.generation,
                    bucket=bucket,
                    place=start,
                )
            )
            start = end
        return BatchResult(answers=tuple(answers), sums=sum_up(outputs[0][:start], info=self.model.outputs[0]))

    def _run_alone(self, batch: Sequence[tuple[Array, ...]]) -> BatchResult:
        """Run each request of a failed batch by itself, at its own bucket."""
        results = [self._run([arrays], bucket=bucket_for(len(arrays[0]), buckets=self.buckets)) for arrays in batch]
        return BatchResult(
            answers=tuple(answer for result in results for answer in result.answers),
            sums=add_up([result.sums for result in results]),
        )


def compute(slot: Slot, batch: Sequence[tuple[Array, ...]], *, model: ModelInfo, bucket: int) -> tuple[Array, ...]:
    """Run the slot's program on the joined rows; return its outputs as wire arrays of ``bucket`` rows.

    Raises:
        ModelFailedError: The program raised.
    """
    inputs = [
        join([arrays[position] for arrays in batch], info=info, bucket=bucket)
        for position, info in enumerate(model.inputs)
    ]
    try:
        outputs = slot.runner(*inputs)
    except Exception as error:  # a program is foreign code: whatever it raises must fail its own request only
        raise ModelFailedError(
            f"model '{model.name}' on a batch of {bucket} rows",
            found=f"{type(error).__name__}: {quote(str(error))}",
            expected="an answer",
        ) from error
    return tuple(_to_wire(output) for output in outputs)


def join(arrays: Sequence[Array], *, info: TensorInfo, bucket: int) -> Tensor:
    """Copy the rows into a tensor of ``bucket`` rows, zero where none are left.

    The memory is torch's own, aligned as in any offline run: kernels may choose other code, and so other bits, for
    tensors that start elsewhere.
    """
    tensor = torch.empty((bucket, *info.row_shape), dtype=getattr(torch, info.datatype.torch_name))
    rows = _to_wire(tensor)
    end = 0
    for array in arrays:
        start, end = end, end + len(array)
        rows[start:end] = array
    rows[end:] = 0
    return tensor


def _to_wire(tensor: Tensor) -> Array:
    """View a CPU tensor as an array; bfloat16, which NumPy lacks, as its bits."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    array: Array = tensor.numpy()
    return array


def warm(slot: Slot, *, model: ModelInfo, buckets: tuple[int, ...]) -> LatencyTable:
    """Run each bucket on zeros, twice; the second run's seconds start the latency table.

    Raises:
        ReleaseRefusedError: The program does not answer a bucket.
    """
    table = LatencyTable(buckets=buckets)
    for bucket in buckets:
        rows = tuple(np.zeros((bucket, *info.row_shape), dtype=info.datatype.wire) for info in model.inputs)
        try:
            compute(slot, [rows], model=model, bucket=bucket)
            started_s = time.perf_counter()
            compute(slot, [rows], model=model, bucket=bucket)
        except ModelFailedError as error:
            raise ReleaseRefusedError(
                f"program {slot.program.digest} at bucket {bucket}",
                found=error.found,
                expected="an answer to rows of zeros",
                next_step=f"Compile it for 1 to {buckets[-1]} rows.",
            ) from error
        table = table.observed(bucket, time.perf_counter() - started_s)
    return table


def sum_up(output: Array, *, info: TensorInfo) -> OutputSums:
    """Sum the first output's values, margins and classes; integers and BF16 bits are only counted."""
    if output.dtype.kind != "f":
        return OutputSums(values=output.size)
    values = output.astype(np.float64)
    finite = np.isfinite(values)
    kept = values[finite]
    margin_total = 0.0
    class_counts: tuple[tuple[int, int], ...] = ()
    if output.ndim == 2 and 2 <= output.shape[1] <= MAX_CLASSES:
        margin_total, class_counts = _sum_classes(values[finite.all(axis=1)])
    return OutputSums(
        values=output.size,
        nonfinite=output.size - kept.size,
        total=float(kept.sum()),
        square_total=float(np.square(kept).sum()),
        margin_total=margin_total,
        class_counts=class_counts,
    )


def _sum_classes(rows: Array) -> tuple[float, tuple[tuple[int, int], ...]]:
    """Sum top-1 minus top-2 over rows, and count how often each column is the largest."""
    top = np.partition(rows, -2, axis=1)[:, -2:]
    classes, counts = np.unique(rows.argmax(axis=1), return_counts=True)
    return float((top[:, 1] - top[:, 0]).sum()), tuple(zip(classes.tolist(), counts.tolist(), strict=True))


def add_up(parts: Sequence[OutputSums]) -> OutputSums:
    """Add the sums of several runs."""
    counts: dict[int, int] = {}
    for part in parts:
        for kind, count in part.class_counts:
            counts[kind] = counts.get(kind, 0) + count
    return OutputSums(
        values=sum(part.values for part in parts),
        nonfinite=sum(part.nonfinite for part in parts),
        total=sum(part.total for part in parts),
        square_total=sum(part.square_total for part in parts),
        margin_total=sum(part.margin_total for part in parts),
        class_counts=tuple(sorted(counts.items())),
    )
