"""What the good conformance vectors hold: one function for each, that writes it with ``ckpt`` as it is today.

The functions are the sources of ``docs/formats/vectors/v1/good``; a vector, once made, never changes. A function gets
the vector's folder and gives back the checkpoint's path inside it.
"""

import itertools
import json
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import ckpt
from ckpt.format.boxes import Box
from ckpt.format.dtypes import BY_NAME, NARROW, torch_dtype
from tests.ckpt.pieces import along, rows, save_in_pieces
from tests.ckpt.safetensors_files import entry, file_bytes
from tests.ckpt.signers import NEW, OLD, later, noon

CHECKPOINT = "checkpoint"
LONE = f"{CHECKPOINT}/model.safetensors"
INDEX = "model.safetensors.index.json"


def save(folder: Path, state: object, **options: object) -> str:
    ckpt.save(state, folder / CHECKPOINT, **options)  # type: ignore[arg-type]
    return CHECKPOINT


def counted(dtype: str, elements: int) -> torch.Tensor:
    """Elements whose bytes go through many patterns, NaNs with payloads among them; of bool, 0 and 1 alone."""
    size = BY_NAME[dtype].size_bytes * elements
    values = torch.tensor([(index * 73 + 0x7F) % 256 for index in range(size)], dtype=torch.uint8)
    return (values % 2 if dtype == "bool" else values).view(torch_dtype(dtype))


def plain(folder: Path) -> str:
    return save(folder, {"w": torch.tensor([1.0, 2.0])})


def dtypes(folder: Path) -> str:
    return save(folder, {name: counted(name, 5) for name in BY_NAME if name not in NARROW})


def narrow_integers(folder: Path) -> str:
    """The names of all, and tensors of two, which view one storage."""
    flat = counted("uint4", 6)
    return save(folder, [flat, flat.view(torch.int7)[::5], *map(torch_dtype, NARROW)])


def lone_tensor(folder: Path) -> str:
    return save(folder, torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)))


def no_tensors(folder: Path) -> str:
    return save(folder, {"epoch": 3, "best": None})


def tied(folder: Path) -> str:
    weight = torch.arange(12.0).reshape(3, 4)
    return save(folder, {"head": weight, "embed": weight, "format": weight, "nested": [weight]})


def views(folder: Path) -> str:
    flat = torch.arange(20, dtype=torch.int32)
    shared = torch.arange(24.0)
    return save(
        folder,
        {
            "first": flat[:8],
            "second": flat[4:12],
            "tail": flat[15:],
            "every other": torch.arange(9.0)[::2],
            "table": shared.reshape(4, 6),
            "column": shared.reshape(4, 6)[:, 2],
            "transposed": shared.reshape(4, 6).t(),
            "bytes": shared.view(torch.uint8)[3:7],
            "repeated": torch.tensor([1.5, 2.5]).expand(3, 2),
            "halves": torch.arange(8.0)[:4],
        },
    )


def channels_last(folder: Path) -> str:
    weight = torch.arange(2 * 3 * 2 * 2, dtype=torch.float32).reshape(2, 3, 2, 2)
    return save(
        folder,
        {
            "conv": weight.to(memory_format=torch.channels_last),
            "flipped": torch.arange(6, dtype=torch.int16).reshape(2, 3).t(),
            "twice": (permuted := weight.clone().to(memory_format=torch.channels_last)),
            "again": permuted,
        },
    )


def empty(folder: Path) -> str:
    return save(
        folder,
        {
            "scalar": torch.tensor(7, dtype=torch.int64),
            "nothing": torch.empty(0),
            "no rows": torch.empty(2, 0, 3, dtype=torch.bfloat16),
            "ones": torch.ones(1, 1, 3).expand(1, 1, 3),
            "flipped": torch.ones(3, 1).t(),
            "raw": torch.empty(0, dtype=torch.complex32),
        },
    )


def shards(folder: Path) -> str:
    state: dict[str, torch.Tensor] = {f"layer.{index}": torch.arange(64.0) + index for index in range(4)}
    odd = {f"odd.{index}": torch.arange(17.0)[index % 2 :: 2] for index in range(3)}
    return save(folder, state | odd, shard_bytes=520)


def two_chunks(folder: Path) -> str:
    large = torch.zeros((1 << 20) + 5, dtype=torch.uint8)
    large[0], large[1 << 20], large[-1] = 1, 2, 3
    return save(folder, {"large": large})


def kinds(folder: Path) -> str:
    numbers = [0, 1, -1, 127, 128, -128, 255, 2**63 - 1, -(2**63), 2**200, -(2**200)]
    floats = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 5e-324]
    ordered = OrderedDict(b=1, a=[])
    ordered._metadata = OrderedDict({"": {"version": 2}})  # type: ignore[attr-defined]
    deep: object = None
    for _ in range(63):
        deep = [deep]
    return save(
        folder,
        {
            "constants": (None, True, False),
            "ints": numbers,
            "floats": floats,
            "complex": [complex(-0.0, float("nan")), 2j],
            "texts": ["", "é😀\0", b"", b"\xff\0"],
            "dtypes": [torch.float32, torch.complex32, torch.bits8],
            "devices": [torch.device("cpu"), torch.device("cuda:7"), torch.device("meta")],
            "size": torch.Size([0, 1, 2**63 - 1]),
            "ordered": ordered,
            "unordered": OrderedDict(),
            "counter": Counter({"a": 2, 3: 1}),
            "gradient": torch.ones(2, requires_grad=True),
            "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
            "frozen": torch.nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False),
            "deep": deep,
        },
    )


def numpy_kinds(folder: Path) -> str:
    names = ("|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<c8", "<i8", "<u8", "<f8", "<c16")
    return save(
        folder,
        {
            "scalars": [np.array(1).astype(name)[()] for name in names],
            "arrays": {name: np.arange(3).astype(name) for name in names},
            "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "whole": np.array(2.5),
        },
    )


def keys(folder: Path) -> str:
    """Names and keys: escapes, text that JSON escapes, and keys of every kind at both levels."""
    mixed = {5: 0, -1: 1, 2.5: 2, True: 3, None: 4, b"x\xff": 5, "5": 6, float("nan"): 7, -(2**70): 8}
    return save(
        folder,
        {
            'quotes " \\ \n \t \x01 \x7f   é😀': torch.ones(1),
            "__metadata__": torch.ones(2),
            "": torch.ones(3),
            "a/b": {"c/d~e": [torch.ones(4)], "f": (torch.ones(5), {"": torch.ones(6)})},
            7: {key: torch.full((1,), float(value)) for key, value in mixed.items() if key not in ("5",)},
            None: torch.ones(7),
            "scalars": mixed,
        },
    )


def attachments(folder: Path) -> str:
    texts = {"notes.txt": "hello\n", "empty": "", "deep/er/ü.bin": "\0\1\2", "deep.txt": "beside"}
    metadata = {"run": "42", "": "empty key", "é": "ü", "a": "", "Z": "before a"}
    return save_with(folder, {"w": torch.tensor([1.0, 2.0])}, texts, metadata)


def save_with(folder: Path, state: object, texts: dict[str, str], metadata: dict[str, str]) -> str:
    """With attachments of these texts."""
    with TemporaryDirectory() as scratch:
        sources = {path: Path(scratch, str(number)) for number, path in enumerate(texts)}
        for path, source in sources.items():
            source.write_text(texts[path])
        return save(folder, state, attachments=sources, metadata=metadata)


def mixed(folder: Path) -> str:
    """A little of everything: what most of the bad vectors are made from."""
    flat = torch.arange(12.0)
    state = {
        "floats": torch.arange(6.0).reshape(2, 3),
        "ints": torch.arange(4),
        "one": flat[:8],
        "two": flat[4:],
        "odd": torch.arange(9.0)[::2],
        "empty": torch.empty(0, 3),
        "row": torch.ones(1, 2),
        "array": np.arange(3, dtype=np.float32),
        "plain": [None, True, 7, 1.5, 2j, "text", b"bytes", torch.float32, torch.device("cpu"), np.float32(2)],
        "pair": ({1: "int", "k": "str"}, OrderedDict(x=1), torch.Size([2, 3])),
    }
    texts = {"docs/a.txt": "aaa", "docs/b.txt": "bbb"}
    return save_with(folder, state, texts, {"k": "v", "l": "w"})


def pieces(folder: Path) -> str:
    """As several writers store it: tied tensors, a grid, other dtypes, and some that lie whole."""
    table = torch.arange(24.0).reshape(6, 4)
    state = {
        "rows": table,
        "tied": table.clone(),
        "columns": table + 100,
        "grid": torch.arange(27, dtype=torch.int16).reshape(3, 3, 3),
        "deep": torch.arange(32.0).reshape(2, 2, 2, 4),
        "line": counted("complex32", 5),
        "plain": torch.ones(3),
        "steps": [torch.tensor(4), 4],
    }
    sides = [(0, 1), (1, 2)]  # where a box begins along an axis of 3, and how long it is
    grid = [Box(*zip(*sides, strict=True)) for sides in itertools.product(sides, repeat=3)]
    cuts = {
        "rows": rows((6, 4), 2, 4),
        "columns": along((6, 4), 1, 1),
        "grid": grid,
        "deep": halved((2, 2, 2, 4)),
        "line": rows((5,), 3),
    }
    save_in_pieces(state, folder / CHECKPOINT, cuts, ties={"tied": "rows"}, metadata={"ranks": "2"})
    return CHECKPOINT


def halved(shape: tuple[int, ...]) -> list[Box]:
    """A box, half of the rest, half of that, and so on, until a box has one element."""
    boxes, offsets, sizes = [], [0] * len(shape), list(shape)
    while (axis := next((axis for axis, size in enumerate(sizes) if size > 1), None)) is not None:
        sizes[axis] //= 2
        boxes.append(Box(tuple(offsets), tuple(sizes)))
        offsets[axis] += sizes[axis]
    return [*boxes, Box(tuple(offsets), tuple(sizes))]


def signed(folder: Path) -> str:
    name = save(folder, {"w": torch.tensor([1.0, 2.0])}, sign=ckpt.signer(OLD, line="mnist", now=noon))
    ckpt.sign(folder / name, NEW, line="mnist", not_after=later(days=1), now=noon)
    return name


def adopted_file(folder: Path) -> str:
    """One file by itself: any order of the header, holes nowhere, dtypes that we read and never write, metadata."""
    rows = {
        "b": entry("F32", [2], 4, 12),
        "__metadata__": {"format": "pt", "alias": "b"},
        "a": entry("F8_E8M0", [4], 0, 4),
        "four": entry("F4", [2, 4], 12, 16),
        "none": entry("BF16", [0, 3], 12, 12),
        "scalar": entry("I8", [], 16, 17),
    }
    return _adopted(folder, {"model.safetensors": file_bytes(rows, bytes(range(17)))}, LONE)


def adopted_folder(folder: Path) -> str:
    first = {"x": entry("F16", [3], 0, 6), "y": entry("U8", [1], 6, 7)}
    files = {
        "model-1.safetensors": file_bytes(first, bytes(range(7))),
        "model-2.safetensors": file_bytes({"z": entry("I64", [1], 0, 8)}, bytes(range(8))),
        INDEX: json.dumps(
            {
                "metadata": {"total_size": 15.5},
                "weight_map": {"z": "model-2.safetensors", "x": "model-1.safetensors", "y": "model-1.safetensors"},
            }
        ).encode(),
    }
    return _adopted(folder, files, CHECKPOINT)


def _adopted(folder: Path, files: dict[str, bytes], name: str) -> str:
    (folder / CHECKPOINT).mkdir()
    for file, content in files.items():
        (folder / CHECKPOINT / file).write_bytes(content)
    ckpt.adopt(folder / name)
    return name


GOOD: dict[str, Callable[[Path], str]] = {
    "plain": plain,
    "dtypes": dtypes,
    "narrow-integers": narrow_integers,
    "lone-tensor": lone_tensor,
    "no-tensors": no_tensors,
    "tied": tied,
    "views": views,
    "channels-last": channels_last,
    "empty": empty,
    "shards": shards,
    "two-chunks": two_chunks,
    "kinds": kinds,
    "numpy": numpy_kinds,
    "keys": keys,
    "attachments": attachments,
    "mixed": mixed,
    "pieces": pieces,
    "signed": signed,
    "adopted-file": adopted_file,
    "adopted-folder": adopted_folder,
}
