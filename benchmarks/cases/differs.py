"""Other people's patches between two safetensors files: a literal table of how each encodes and decodes.

Everyone reads the base, the target or the patch as a plain file and writes one, with the threads that it takes by
itself; nothing is verified or synced. An entry imports what it needs when it is called, before the clock runs; those
that start a program import no torch: see ``delta_peers`` for why.
"""

import filecmp
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import zstandard

from benchmarks.cases.delta_peers import zstd
from benchmarks.plan import Call

Encode = Callable[[Path, Path, Path], object]  # (base, target, patch to be)
Decode = Callable[[Path, Path, Path], object]  # (base, patch, target to be)
Tool = Callable[[], tuple[Encode, Decode]]


@contextmanager
def patch(*, work: Path, shared: Path, part: str, tool: str) -> Iterator[Call]:
    """Encode under the clock; decode after it, and compare what comes out.

    Args:
        part: Folder of the pair in ``shared``.
        tool: A key of ``TOOLS``.
    """
    encode, decode = TOOLS[tool]()
    base, target = (shared / part / f"{half}.safetensors" for half in ("base", "target"))
    made = work / "patch"
    answers: list[Any] = []

    def figures() -> Mapping[str, float]:
        started_s = time.perf_counter()
        decode(base, made, work / "target")
        decode_s = time.perf_counter() - started_s
        if not filecmp.cmp(work / "target", target, shallow=False):
            raise ValueError(f"{tool}: base and patch give other bytes than the target's")
        return {**ratio_figures(target, patch_bytes=made.stat().st_size), "decode_s": decode_s}

    yield Call(
        run=lambda: answers.append(encode(base, target, made)),
        figures=figures,
        peak_bytes=(lambda: int(answers[0])) if tool.startswith("zstd") else None,
    )


def ratio_figures(target: Path, *, patch_bytes: int) -> dict[str, float]:
    """A patch's size, and how many times smaller it is than the target's file."""
    return {"compression_ratio": target.stat().st_size / patch_bytes, "patch_bytes": patch_bytes}


def _zstd(level: str) -> tuple[Encode, Decode]:
    return (
        lambda base, target, made: zstd(level, base=base, source=target, out=made),
        lambda base, made, out: zstd("-d", base=base, source=made, out=out),
    )


def _xdelta() -> tuple[Encode, Decode]:
    pyxdelta = import_module("pyxdelta")

    def ran(done: bool) -> None:
        if not done:
            raise ValueError("pyxdelta answers False, expected True: it could not read or write a file")

    return (
        lambda base, target, made: ran(pyxdelta.run(infile=str(base), outfile=str(target), patchfile=str(made))),
        lambda base, made, out: ran(pyxdelta.decode(infile=str(base), patchfile=str(made), outfile=str(out))),
    )


def _detools() -> tuple[Encode, Decode]:
    detools = import_module("detools")

    def encode(base: Path, target: Path, made: Path) -> None:
        with open(base, "rb") as old, open(target, "rb") as new, open(made, "wb") as out:
            detools.create_patch(old, new, out)

    return encode, lambda base, made, out: detools.apply_patch_filenames(str(base), str(made), str(out))


def _in_memory(
    encode: Callable[[bytes, bytes], bytes], decode: Callable[[bytes, bytes], bytes]
) -> tuple[Encode, Decode]:
    """Of functions (base, target) → patch and (base, patch) → target."""
    return (
        lambda base, target, made: made.write_bytes(encode(base.read_bytes(), target.read_bytes())),
        lambda base, made, out: out.write_bytes(decode(base.read_bytes(), made.read_bytes())),
    )


def _bsdiff4() -> tuple[Encode, Decode]:
    bsdiff4 = import_module("bsdiff4")
    return _in_memory(bsdiff4.diff, bsdiff4.patch)


def _hdiffpatch() -> tuple[Encode, Decode]:
    hdiffpatch = import_module("hdiffpatch")
    return _in_memory(partial(hdiffpatch.diff, compression="zstd", validate=False), hdiffpatch.apply)


def _z4ai() -> tuple[Encode, Decode]:
    z4ai = import_module("z4ai.model_delta")
    return _in_memory(lambda base, target: z4ai.compress(target, base), lambda base, made: z4ai.decompress(made, base))


def _zipnn(dtype: str) -> tuple[Encode, Decode]:
    """XOR with the base, which ZipNN takes only where it is as long as the target; else the target alone."""
    zipnn = import_module("zipnn").ZipNN

    def settings(is_delta: bool) -> Any:
        delta = {"delta_compressed_type": "byte"} if is_delta else {}
        return zipnn(input_format="byte", bytearray_dtype=dtype, **delta)

    def encode(base: bytes, target: bytes) -> bytes:
        is_delta = len(base) == len(target)
        packed = settings(is_delta).compress(target, delta_second_data=base if is_delta else None)
        return bytes([is_delta]) + bytes(packed)

    def decode(base: bytes, made: bytes) -> bytes:
        unpacked = settings(bool(made[0])).decompress(made[1:], delta_second_data=base if made[0] else None)
        return bytes(unpacked)

    return _in_memory(encode, decode)


def _changed_values() -> tuple[Encode, Decode]:
    """What comes first to mind: indices and values of what changed as safetensors, and zstd over the file."""
    import torch
    from safetensors.torch import load, load_file, save, save_file

    from benchmarks.pairs.changes import bits

    def encode(base: Path, target: Path, made: Path) -> None:
        old, kept = load_file(base), {}
        for name, tensor in load_file(target).items():
            if name not in old or old[name].shape != tensor.shape or old[name].dtype != tensor.dtype:
                kept[f"{name}.whole"] = tensor
                continue
            changed = torch.from_numpy((bits(old[name]) != bits(tensor)).nonzero()[0])
            if len(changed):
                kept[f"{name}.indices"] = changed.int()
                kept[f"{name}.values"] = tensor.flatten()[changed]
        made.write_bytes(zstandard.compress(save(kept), 3))

    def decode(base: Path, made: Path, out: Path) -> None:
        state, kept = load_file(base), load(zstandard.decompress(made.read_bytes()))
        for key, value in kept.items():
            name, _, what = key.rpartition(".")
            if what == "whole":
                state[name] = value
            elif what == "indices":
                state[name].view(-1)[value.long()] = kept[f"{name}.values"]
        save_file(state, out)

    return encode, decode


TOOLS: Mapping[str, Tool] = {
    "zstd -3": partial(_zstd, "-3"),
    "zstd -19": partial(_zstd, "-19"),
    "xdelta": _xdelta,
    "z4ai": _z4ai,
    "zipnn bfloat16": partial(_zipnn, "bfloat16"),
    "zipnn float32": partial(_zipnn, "float32"),
    "changed values": _changed_values,
    "bsdiff4": _bsdiff4,
    "hdiffpatch": _hdiffpatch,
    "detools": _detools,
}
