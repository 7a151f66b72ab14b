"""The area ``pipeline``: every stage from rows to a hot update, ours beside the plain tools that would do without us.

Sizes are for a full run of about eight minutes on 2 cores; quick ones show only that everything works. What a side
includes, and what its peer leaves out, stands in the note of each comparison.
"""

from collections.abc import Mapping

from benchmarks.mlflow_server import mlflow_server
from benchmarks.plan import Comparison, Side, Stage, Value

_MIB = 1 << 20


def stages(is_quick: bool) -> tuple[Stage, ...]:
    """The stages in the order of the pipeline."""
    return (
        _ingest(rows=256 if is_quick else 5000),
        _train(rows=512 if is_quick else 5000, steps=2 if is_quick else 30),
        _program("one-layer", backend="eager", scale=1)
        if is_quick
        else _program("recipes.mnist", backend="aoti", scale=30),
        _checkpoint(size_mib=2 if is_quick else 256),
        _delta(size_mib=2 if is_quick else 64),
        _registry(size_mib=1 if is_quick else 64),
    )


def _ours(name: str, case: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"benchmarks.cases.{case}", parameters=parameters, is_ours=True)


def _peer(name: str, case: str, *, needs: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"benchmarks.cases.{case}", parameters=parameters, needs=(needs,))


def _ingest(*, rows: int) -> Stage:
    return Stage(
        name="ingest",
        prepare="benchmarks.cases.ingesting:prepare",
        parameters={"rows": rows},
        comparisons=(
            Comparison(
                name=f"{rows:,} MNIST digits, gzipped CSV to Arrow",
                note="Ours validates each cell, digests the content, syncs and verifies; the peers convert.",
                sides=(
                    _ours("ingest.ingest", "ingesting:treering"),
                    _peer("pyarrow read_csv + write_feather", "ingesting:with_pyarrow", needs="pyarrow"),
                    _peer("pandas read_csv + to_feather", "ingesting:with_pandas", needs="pandas"),
                ),
            ),
        ),
    )


def _train(*, rows: int, steps: int) -> Stage:
    return Stage(
        name="train",
        prepare="benchmarks.cases.training:prepare",
        parameters={"rows": rows},
        comparisons=(
            Comparison(
                name="one step of 64 rows, MNIST recipe",
                note="Ours reads mapped rows in a resumable order and reports loss and accuracy of every step.",
                sides=(
                    _ours("recipes.mnist", "training:treering", steps=steps),
                    _peer("bare PyTorch loop", "training:bare_loop", needs="torch", steps=steps),
                ),
            ),
        ),
    )


def _program(model: str, *, backend: str, scale: int) -> Stage:
    built: Mapping[str, Value] = {"model": model, "backend": backend}
    return Stage(
        name="program",
        prepare="benchmarks.cases.releases:prepare",
        parameters=built,
        comparisons=(
            Comparison(
                name=f"compile {model}",
                note="Ours folds, builds code that takes new weights, and verifies it in float64; the peer's time is "
                "that of its first call. Compilers run in processes of their own, whose memory is not counted.",
                most_repeats=1,  # a cold compilation takes 10 to 40 s
                sides=(
                    _ours("compiler.compile, cold", "programs:compile_treering", **built, warm=False),
                    _ours("compiler.compile, warm cache", "programs:compile_treering", **built, warm=True),
                    _peer("torch.compile, cold", "programs:compile_torch", needs="torch", model=model, warm=False),
                    _peer("torch.compile, warm cache", "programs:compile_torch", needs="torch", model=model, warm=True),
                ),
            ),
            _forward(model, backend=backend, rows=1, calls=10 * scale),
            _forward(model, backend=backend, rows=32, calls=2 * scale),
            _update(model, updates=scale),
        ),
    )


def _forward(model: str, *, backend: str, rows: int, calls: int) -> Comparison:
    asked: Mapping[str, Value] = {"model": model, "rows": rows, "calls": calls}
    return Comparison(
        name=f"forward, batch {rows}",
        note=f"Mean of {calls} calls after three to warm up, one thread; ours checks every input.",
        most_repeats=2,  # preparing torch.compile takes 15 s even with a warm cache
        sides=(
            _ours(f"program ({backend})", "programs:forward_treering", **asked),
            _peer("eager PyTorch", "programs:forward_eager", needs="torch", **asked),
            _peer("torch.compile", "programs:forward_torch_compile", needs="torch", **asked),
        ),
    )


def _update(model: str, *, updates: int) -> Comparison:
    return Comparison(
        name=f"new weights for a live {model}",
        note=f"Mean of {updates} updates from disk; in a pause no batch can start. Ours verifies by SHA-256.",
        sides=(
            _ours("stage + flip", "updating:hot_update", updates=updates),
            _peer(
                "torch.load + load_state_dict", "updating:load_in_place", needs="torch", model=model, updates=updates
            ),
        ),
    )


def _checkpoint(*, size_mib: int) -> Stage:
    size: Mapping[str, Value] = {"size_bytes": size_mib * _MIB}
    return Stage(
        name="checkpoint",
        prepare="benchmarks.cases.checkpoints:prepare",
        parameters=size,
        comparisons=(
            Comparison(
                name=f"save {size_mib} MiB of float32 and bfloat16",
                note="Ours computes CRC-32 and SHA-256 of every chunk, syncs, and renames into place.",
                sides=(
                    _ours("ckpt.save", "checkpoints:save_treering", **size),
                    _peer("torch.save", "checkpoints:save_torch", needs="torch", sync=False, **size),
                    _peer("torch.save + fsync", "checkpoints:save_torch", needs="torch", sync=True, **size),
                    _peer("safetensors", "checkpoints:save_safetensors", needs="safetensors", sync=False, **size),
                    _peer(
                        "safetensors + fsync", "checkpoints:save_safetensors", needs="safetensors", sync=True, **size
                    ),
                ),
            ),
            Comparison(
                name=f"load {size_mib} MiB, a byte of every page read",
                note="Files are in the page cache; mapped pages count as memory while they are resident.",
                sides=(
                    _ours("ckpt.load verify=crc32", "checkpoints:load_treering", verify="crc32"),
                    _ours("ckpt.load verify=sha256", "checkpoints:load_treering", verify="sha256"),
                    _ours("ckpt.load verify=none", "checkpoints:load_treering", verify="none"),
                    _peer("torch.load mmap=True", "checkpoints:load_torch", needs="torch", mmap=True),
                    _peer("torch.load mmap=False", "checkpoints:load_torch", needs="torch", mmap=False),
                    _peer("safetensors load_file", "checkpoints:load_safetensors", needs="safetensors"),
                ),
            ),
        ),
    )


def _delta(*, size_mib: int) -> Stage:
    steps = f"{size_mib} MiB bfloat16, 1 % of elements ±1 unit in the last place"
    head = f"{size_mib} MiB bfloat16, a new head of 1/64"
    small = "1 MiB bfloat16, 1 % of elements ±1 (bsdiff needs 17 times its input in memory)"
    bsdiff = (
        _peer("bsdiff4", "delta_peers:bsdiff_make", needs="bsdiff4", change="small"),
        _peer("bsdiff4", "delta_peers:bsdiff_apply", needs="bsdiff4", change="small"),
    )
    return Stage(
        name="delta",
        prepare="benchmarks.cases.deltas:prepare",
        parameters={"size_bytes": size_mib * _MIB, "small_bytes": _MIB},
        comparisons=(
            *_patches(steps, change="steps"),
            *_patches(head, change="head"),
            *_patches(small, change="small", peers=bsdiff),
        ),
    )


def _patches(what: str, *, change: str, peers: tuple[Side, Side] | None = None) -> tuple[Comparison, Comparison]:
    made, applied = peers or (
        _peer("zstd -3 --patch-from", "delta_peers:zstd_make", needs="program:zstd", change=change),
        _peer("zstd -d --patch-from", "delta_peers:zstd_apply", needs="program:zstd", change=change),
    )
    return (
        Comparison(
            name=f"diff: {what}",
            note="Ours checks what it reads and syncs what it writes; the peer works on plain files. Pages "
            "that ours maps count as memory while they are resident.",
            sides=(_ours("ckpt.diff", "deltas:diff", change=change), made),
        ),
        Comparison(
            name=f"apply: {what}",
            note="Ours proves frames and result by SHA-256 and syncs; the peer trusts both. Mapped pages count.",
            sides=(_ours("ckpt.apply", "deltas:apply", change=change), applied),
        ),
    )


def _registry(*, size_mib: int) -> Stage:
    return Stage(
        name="registry",
        prepare="benchmarks.cases.publishing:prepare",
        parameters={"size_bytes": size_mib * _MIB},
        server=mlflow_server,
        comparisons=(
            Comparison(
                name=f"publish {size_mib} MiB to a local MLflow server",
                note="Ours verifies, uploads, reads back, verifies again and makes a version; the peer uploads a file.",
                most_repeats=2,
                sides=(
                    _ours("registry.publish, full", "publishing:publish", as_delta=False),
                    _ours("registry.publish, delta (1 % ±1)", "publishing:publish", as_delta=True),
                    Side(name="MlflowClient.log_artifact", case="mlflow_upload.py:upload", needs=("mlflow",)),
                ),
            ),
            Comparison(
                name=f"fetch {size_mib} MiB from a local MLflow server",
                note="Ours proves every byte by SHA-256; the delta starts from a cache that holds its base.",
                most_repeats=2,
                sides=(
                    _ours("registry.fetch, full", "publishing:fetch", as_delta=False),
                    _ours("registry.fetch, delta (1 % ±1)", "publishing:fetch", as_delta=True),
                    Side(name="MlflowClient.download_artifacts", case="mlflow_upload.py:download", needs=("mlflow",)),
                ),
            ),
        ),
    )
