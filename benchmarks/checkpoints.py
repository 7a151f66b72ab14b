"""The area ``ckpt``: saving, loading, verifying and snapshots beside the libraries in use and the bare file system.

A full run takes about half an hour on 2 cores, 20 GiB of memory and as much of disk. The names of stages, comparisons
and sides are stable: figures of different commits can be compared by them.
"""

from collections.abc import Mapping
from os import cpu_count

from benchmarks.plan import Comparison, Side, Stage, Value

_MIB = 1 << 20
_LARGE_BYTES = 3_670_016  # 3.5 MiB: 300 of them are 1 GiB
_SMALL_BYTES = 1024


def stages(is_quick: bool) -> tuple[Stage, ...]:
    """A model of 300 tensors, one of 100,000 small ones, memory at two sizes, a slice of a sparse giant."""
    model = _sizes(count=3 if is_quick else 300, tensor_bytes=_LARGE_BYTES)
    small = _sizes(count=50 if is_quick else 100_000, tensor_bytes=_SMALL_BYTES)
    return (
        _model(model),
        _small(small),
        _memory("memory", model),
        _memory("memory-8x", _sizes(count=4 if is_quick else 2400, tensor_bytes=_LARGE_BYTES)),
        _slice(size_bytes=64 * _MIB if is_quick else 100 * 10**9),
    )


def _sizes(*, count: int, tensor_bytes: int) -> dict[str, Value]:
    return {"size_bytes": count * tensor_bytes, "tensor_bytes": tensor_bytes}


def _ours(name: str, case: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"benchmarks.cases.{case}", parameters=parameters, is_ours=True)


def _peer(name: str, case: str, *, needs: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"benchmarks.cases.{case}", parameters=parameters, needs=(needs,))


def _model(sizes: Mapping[str, Value]) -> Stage:
    return Stage(
        name="model",
        prepare="benchmarks.cases.checkpoints:prepare",
        parameters=sizes,
        comparisons=(
            Comparison(
                name="save",
                note="Ours hashes all bytes by CRC-32 and SHA-256. New paths; file and folder are synced.",
                sides=(
                    _ours("ckpt.save", "checkpoints:save_treering", **sizes),
                    _peer("write + fsync", "checkpoints:save_raw", needs="torch", **sizes),
                    _peer(
                        "safetensors + fsync", "checkpoints:save_safetensors", needs="safetensors", sync=True, **sizes
                    ),
                    _peer(
                        "safetensors, not synced", "checkpoints:save_safetensors", needs="torch", sync=False, **sizes
                    ),
                    _peer("torch.save + fsync", "checkpoints:save_torch", needs="torch", sync=True, **sizes),
                    _peer("dcp.save", "checkpoints:save_dcp", needs="torch", **sizes),
                    _peer("tensorizer + fsync", "checkpoints:save_tensorizer", needs="tensorizer", **sizes),
                ),
            ),
            Comparison(
                name="load, mapped",
                note="A byte of every page is read; files are in the page cache. Peers verify nothing.",
                sides=(
                    _ours("ckpt.load verify=crc32", "checkpoints:load_treering", verify="crc32"),
                    _ours("ckpt.load verify=none", "checkpoints:load_treering", verify="none"),
                    _ours("ckpt.load verify=sha256", "checkpoints:load_treering", verify="sha256"),
                    _peer("safetensors", "checkpoints:load_safetensors", needs="safetensors"),
                    _peer("torch.load mmap=True", "checkpoints:load_torch", needs="torch", mmap=True),
                ),
            ),
            Comparison(
                name="load, private memory",
                note="Ours checks each block while it is in cache; of the peers only tensorizer can verify.",
                sides=(
                    _ours("ckpt.load mmap=False verify=crc32", "checkpoints:load_treering", verify="crc32", mmap=False),
                    _peer("read, nothing verified", "checkpoints:read_unverified", needs="torch"),
                    _peer("torch.load", "checkpoints:load_torch", needs="torch", mmap=False),
                    _peer("dcp.load", "checkpoints:load_dcp", needs="torch", **sizes),
                    _peer("tensorizer", "checkpoints:load_tensorizer", needs="tensorizer", verify=False),
                    _peer("tensorizer, verified", "checkpoints:load_tensorizer", needs="tensorizer", verify=True),
                ),
            ),
            Comparison(
                name="verify by SHA-256",
                note="hashlib hashes runs of 1 MiB of the same mapped file and compares nothing.",
                sides=(
                    _ours("ckpt.verify", "checkpoints:verify_treering", verify="sha256"),
                    _peer("hashlib, all cores", "checkpoints:hash_alone", needs="torch", threads=cpu_count() or 1),
                    _peer("hashlib, one thread", "checkpoints:hash_alone", needs="torch", threads=1),
                ),
            ),
            Comparison(
                name="save in the background, time the caller is held up",
                note="The second save, memory being warm; copy_ into tensors that were written before.",
                sides=(
                    _ours("ckpt.save_async", "background:treering", **sizes),
                    _peer("copy_ alone", "background:copy_alone", needs="torch", **sizes),
                    _peer("dcp.async_save", "background:with_dcp", needs="torch", **sizes),
                ),
            ),
        ),
    )


def _small(sizes: Mapping[str, Value]) -> Stage:
    return Stage(
        name="small",
        prepare="benchmarks.cases.checkpoints:prepare_common",
        parameters=sizes,
        comparisons=(
            Comparison(
                name="save, many small tensors",
                note="Ours hashes and syncs; safetensors is synced, too.",
                sides=(
                    _ours("ckpt.save", "checkpoints:save_treering", **sizes),
                    _peer(
                        "safetensors + fsync", "checkpoints:save_safetensors", needs="safetensors", sync=True, **sizes
                    ),
                    _peer("torch.save + fsync", "checkpoints:save_torch", needs="torch", sync=True, **sizes),
                ),
            ),
            Comparison(
                name="load, many small tensors",
                note="Ours checks every byte.",
                sides=(
                    _ours("ckpt.load verify=crc32", "checkpoints:load_treering", verify="crc32"),
                    _peer("safetensors", "checkpoints:load_safetensors", needs="safetensors"),
                    _peer("torch.load mmap=True", "checkpoints:load_torch", needs="torch", mmap=True),
                ),
            ),
        ),
    )


def _memory(name: str, sizes: Mapping[str, Value]) -> Stage:
    return Stage(
        name=name,
        prepare="benchmarks.cases.checkpoints:prepare_ours",
        parameters=sizes,
        comparisons=(
            Comparison(
                name=f"extra memory while saving, {name}",
                note="What counts is the peak above the state itself.",
                most_repeats=1,
                sides=(
                    _ours("ckpt.save", "checkpoints:save_treering", **sizes),
                    _peer("torch.save + fsync", "checkpoints:save_torch", needs="torch", sync=True, **sizes),
                ),
            ),
            Comparison(
                name=f"extra memory while verifying, {name}",
                note="Pages of mapped files count while they are resident.",
                most_repeats=1,
                sides=(
                    _ours("ckpt.verify", "checkpoints:verify_treering", verify="sha256"),
                    _peer("hashlib, one thread", "checkpoints:hash_alone", needs="torch", threads=1),
                ),
            ),
        ),
    )


def _slice(*, size_bytes: int) -> Stage:
    return Stage(
        name="slice",
        prepare="benchmarks.cases.slicing:prepare",
        parameters={"size_bytes": size_bytes},
        comparisons=(
            Comparison(
                name="4 KiB of a giant, from opening it on",
                note="A row of a sparse 100 GB, which safetensors cannot map where memory is smaller than that.",
                sides=(
                    _ours("ckpt.open + slice", "slicing:treering"),
                    _peer("pread, nothing verified", "slicing:with_pread", needs="torch"),
                ),
            ),
        ),
    )
