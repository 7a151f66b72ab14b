"""The area ``delta``: how small patches are, ours beside other people's, and how fast ours are made and applied.

A stage for each pair of ``benchmarks.pairs``: the time is that of encoding, ``decode_s`` that of decoding, and what was
decoded is compared with the target. The side *bounds* tells what coders of element differences cannot go beyond; where
rows were inserted there is none. Programs that take minutes for 90 MB run beside ours on a part of the pair, which the
comparison's name states. Most peers are not among our requirements:

    pip install pyxdelta z4ai zipnn hdiffpatch detools

Trained pairs are kept in ``.treering/pairs``; remove that folder after changing how they are made. A full run takes 20
GiB of memory and 60 of disk. The names of stages, comparisons and sides are stable.
"""

from collections.abc import Mapping
from os import cpu_count

from benchmarks.machine import REPOSITORY
from benchmarks.pairs import sources
from benchmarks.plan import Comparison, Side, Stage, Value

QUICK = ("minilm-bf16-lr1e-5-steps10", "minilm-inserted-fp32", "synthetic-bf16-1%")
FULL_MIB, LARGE_MIB, LOOPS_MIB, QUICK_MIB = 1024, 8192, 64, 8
PARTS = {  # beginning of a pair's name → what the names of a part's tensors hold
    "mnist-": "",
    "minilm-rows-": "embeddings.words.",
    "minilm-appended-": "embeddings.words.",
    "minilm-inserted-": "embeddings.words.",
    "": "layers.0.",
}
_NOTE = "The time is that of encoding. Ours checks what it reads and syncs what it writes; the others do neither."


def stages(is_quick: bool) -> tuple[Stage, ...]:
    """Every pair, or three of them small; then speed, that of the codecs' loops alone, and memory."""
    size = QUICK_MIB if is_quick else FULL_MIB
    table = sources(is_quick=is_quick, synthetic_mib=size)
    names = QUICK if is_quick else [name for source in table for name in source.pairs]
    return (
        *(_pair(name, is_quick=is_quick, synthetic_mib=size) for name in names),
        _speed(
            "sparse",
            "synthetic-bf16-1%",
            size_mib=size,
            more=(live(size, device="cpu", threads={", all cores": cpu_count() or 1, ", one thread": 1}),),
        ),
        _speed("dense", "synthetic-bf16-70%", size_mib=size),
        _loops(QUICK_MIB if is_quick else LOOPS_MIB),
        _memory("memory", size_mib=size),
        _memory("memory-8x", size_mib=QUICK_MIB * 2 if is_quick else LARGE_MIB),
    )


def _ours(name: str, case: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"benchmarks.cases.{case}", parameters=parameters, is_ours=True)


def _peer(name: str, case: str, *, needs: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"benchmarks.cases.{case}", parameters=parameters, needs=(needs,))


def _tool(name: str, tool: str, *, needs: str, part: str) -> Side:
    return _peer(name, "differs:patch", needs=needs, tool=tool, part=part)


def _pair(name: str, *, is_quick: bool, synthetic_mib: int) -> Stage:
    part = next(held for beginning, held in PARTS.items() if name.startswith(beginning))
    is_kept = not is_quick and not name.startswith("synthetic-")
    zipnn = "zipnn bfloat16" if "bf16" in name else "zipnn float32"
    quick, slow = _quick_sides("whole", zipnn), _slow_sides("part" if part else "whole")
    if part:
        compared = [_ratios(name, "whole", quick), _ratios(f"{name}, of which '{part}' alone", "part", slow)]
    else:
        compared = [_ratios(name, "whole", (*quick, *slow))]
    return Stage(
        name=name,
        prepare="benchmarks.cases.trained_pairs:prepare",
        parameters={
            "pair": name,
            "part": part,
            "kept": str(REPOSITORY / ".treering" / "pairs") if is_kept else "",
            "is_quick": is_quick,
            "synthetic_mib": synthetic_mib,
        },
        comparisons=tuple(compared),
    )


def _ratios(name: str, part: str, peers: tuple[Side, ...]) -> Comparison:
    return Comparison(
        name=name,
        note=_NOTE,
        most_repeats=1,
        sides=(
            _ours("ckpt.diff", "trained_pairs:delta", part=part),
            *peers,
            *(() if "inserted" in name else (_peer("bounds", "bounds:bounds", needs="numpy", part=part),)),
        ),
    )


def _quick_sides(part: str, zipnn: str) -> tuple[Side, ...]:
    return (
        _tool("zstd -3 --patch-from", "zstd -3", needs="program:zstd", part=part),
        _tool("xdelta3", "xdelta", needs="pyxdelta", part=part),
        _tool("z4ai", "z4ai", needs="z4ai", part=part),
        _tool("ZipNN of the XOR", zipnn, needs="zipnn", part=part),
        _tool("indices + values, zstd -3", "changed values", needs="safetensors", part=part),
    )


def _slow_sides(part: str) -> tuple[Side, ...]:
    return (
        _tool("bsdiff4", "bsdiff4", needs="bsdiff4", part=part),
        _tool("HDiffPatch, zstd", "hdiffpatch", needs="hdiffpatch", part=part),
        _tool("zstd -19 --patch-from", "zstd -19", needs="program:zstd", part=part),
        _tool("detools", "detools", needs="detools", part=part),
    )


def _synthetic(name: str, pair: str, *, size_mib: int, comparisons: tuple[Comparison, ...]) -> Stage:
    parameters: Mapping[str, Value] = {"pair": pair, "size_mib": size_mib}
    return Stage(
        name=name, prepare="benchmarks.cases.delta_speed:prepare", parameters=parameters, comparisons=comparisons
    )


def live(size_mib: int, *, device: str, threads: Mapping[str, int]) -> Comparison:
    """A staged patch in memory; ``threads`` by what a side's name says of them."""
    return Comparison(
        name=f"live apply of 1 % to {size_mib} MiB",
        note="Staged and verified before, positions and values in memory; the others check nothing and undo nothing.",
        sides=(
            *(
                _ours(f"ckpt.stage(…).apply{said}", "live:apply", threads=number, device=device)
                for said, number in threads.items()
            ),
            *(
                _peer(f"torch {call}", "live:torch_call", needs="torch", call=call, device=device)
                for call in ("index_copy_", "index_put_")
            ),
            _peer("copy_ of everything", "live:copy_all", needs="torch", device=device),
        ),
    )


def _speed(name: str, pair: str, *, size_mib: int, more: tuple[Comparison, ...] = ()) -> Stage:
    what = f"{size_mib} MiB {pair}"
    return _synthetic(
        name,
        pair,
        size_mib=size_mib,
        comparisons=(
            Comparison(
                name=f"encode {what}",
                note="Ours proves what it reads of both halves: processor time beyond hashlib's goes into encoding.",
                sides=(
                    _ours("ckpt.diff", "delta_speed:diff"),
                    _ours("ckpt.diff without contextual", "delta_speed:diff", choice="without contextual"),
                    _peer("compare alone, one thread", "delta_speed:compare", needs="numpy"),
                    _peer("hashlib over both, one thread", "delta_speed:hash_both", needs="torch"),
                ),
            ),
            Comparison(
                name=f"decode into memory {what}",
                note="Ours decodes, proves every chunk by SHA-256 and writes to a file system in memory.",
                sides=(
                    _ours("ckpt.apply", "delta_speed:apply", in_memory=True),
                    _ours(
                        "ckpt.apply without contextual",
                        "delta_speed:apply",
                        in_memory=True,
                        choice="without contextual",
                    ),
                    _peer(
                        "hashlib, all cores",
                        "checkpoints:hash_alone",
                        needs="torch",
                        of="target",
                        threads=cpu_count() or 1,
                    ),
                ),
            ),
            Comparison(
                name=f"apply to a folder {what}",
                note="Both sync files and folder; ours proves them before they appear.",
                sides=(
                    _ours("ckpt.apply", "delta_speed:apply", in_memory=False),
                    _ours(
                        "ckpt.apply without contextual",
                        "delta_speed:apply",
                        in_memory=False,
                        choice="without contextual",
                    ),
                    _peer("write + fsync", "delta_speed:write_raw", needs="torch"),
                ),
            ),
            *more,
        ),
    )


def _loops(size_mib: int) -> Stage:
    return Stage(
        name="loops",
        prepare="benchmarks.cases.codec_loops:prepare",
        comparisons=tuple(
            _loop(size_mib=size_mib, percent=percent, frame_mib=frame_mib) for percent, frame_mib in ((1, 8), (70, 1))
        ),
    )


def _loop(**parameters: int) -> Comparison:
    sizes = "{size_mib} MiB of bfloat16 in frames of {frame_mib} MiB, {percent} % changed".format(**parameters)
    return Comparison(
        name=f"one thread, {sizes}",
        note="The time is that of encoding; figures are by second of the processor, and decoding is one of them.",
        sides=(
            *(
                _ours(f"codec {name}", "codec_loops:both_ways", codec_name=name, **parameters)
                for name in ("contextual", "sparse", "planes")
            ),
            _peer("hashlib over the target", "codec_loops:sha256", needs="torch", **parameters),
        ),
    )


def _memory(name: str, *, size_mib: int) -> Stage:
    return _synthetic(
        name,
        "synthetic-bf16-1%",
        size_mib=size_mib,
        comparisons=(
            Comparison(
                name=f"extra memory, {name}",
                note="Pages of mapped files count while they are resident.",
                most_repeats=1,
                sides=(
                    _ours("ckpt.diff", "delta_speed:diff"),
                    _ours("ckpt.apply", "delta_speed:apply", in_memory=False),
                ),
            ),
        ),
    )
