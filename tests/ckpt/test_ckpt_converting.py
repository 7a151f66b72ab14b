"""What other libraries wrote becomes a checkpoint of the same state, read by a child that can do little harm."""

import errno
import io
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp

import ckpt
from ckpt.__main__ import main
from ckpt.conversion import converting, npz, torch_file
from ckpt.conversion import dcp as dcp_folder
from ckpt.conversion.archive import checked_archive
from ckpt.format import state
from tests.ckpt.equality import same
from tests.ckpt.foreign_files import Payload, dcp_metadata, saved, write_metadata
from tests.hostile.lying_imports import pickled, place


def training_state() -> dict[str, Any]:
    """Module, optimiser, random states and plain values, with tensors that share memory."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    optimiser = torch.optim.AdamW(module.parameters())
    module(torch.randn(1, 2, 3, 3)).sum().backward()
    optimiser.step()
    flat = torch.arange(10.0)
    return {
        "model": module.state_dict(),
        "optimiser": optimiser.state_dict(),
        "epoch": 3,
        "random": {"torch": torch.get_rng_state(), "numpy": np.random.RandomState(0).get_state()},
        "score": np.float64(0.1),
        "tied": [flat, flat, flat[2:5]],
        "last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "bits": torch.tensor([float("nan"), -0.0]).bfloat16(),
        "plain": (None, True, 2.5, "text", b"bytes", torch.float16, torch.Size([2])),
        "ordered": OrderedDict(x=1),
    }


# --- torch.save -----------------------------------------------------------------------------------------------------


def test_a_training_state_of_torch_save_keeps_its_nesting_and_its_root(tmp_path: Path) -> None:
    state = training_state()
    torch.save(state, tmp_path / "x.pt")
    seen: list[tuple[int, int]] = []

    manifest = ckpt.convert(tmp_path / "x.pt", tmp_path / "c", progress=lambda done, total: seen.append((done, total)))

    assert same(ckpt.load(tmp_path / "c", root=manifest.root), state)
    assert manifest.root == ckpt.save(state, tmp_path / "saved").root
    assert seen[-1] == (manifest.payload_bytes,) * 2


def test_a_file_in_the_old_form_is_converted(tmp_path: Path) -> None:
    state = training_state()
    torch.save(state, tmp_path / "x.bin", _use_new_zipfile_serialization=False)

    torch_file.convert(tmp_path / "x.bin", tmp_path / "c", None)

    assert same(ckpt.load(tmp_path / "c"), state)


@pytest.mark.parametrize("modern", [True, False])
def test_a_payload_is_refused_and_never_runs(modern: bool, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save({"w": torch.ones(2), "x": Payload(marker)}, tmp_path / "x.pt", _use_new_zipfile_serialization=modern)

    with pytest.raises(ckpt.ConversionError, match=r"asks for 'posix\.mkdir'"):
        ckpt.convert(tmp_path / "x.pt", tmp_path / "c")
    assert not marker.exists()
    assert not (tmp_path / "c").exists()
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert marker.exists(), "it would have run"


def test_what_a_pickle_asks_for_is_named_and_what_is_none_is_said(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 1), tmp_path / "module.pt")
    (tmp_path / "notes.txt").write_text("import ckpt")

    with pytest.raises(
        ckpt.FormatError, match=r"asks for 'torch\.nn\.modules\.linear\.Linear', .* as a state_dict\(\) is"
    ):
        torch_file.convert(tmp_path / "module.pt", tmp_path / "c", None)
    with pytest.raises(ckpt.FormatError, match="found no pickle, or one of more than plain values"):
        torch_file.convert(tmp_path / "notes.txt", tmp_path / "c", None)


def test_a_value_that_a_checkpoint_cannot_hold_is_named(tmp_path: Path) -> None:
    torch.save({"model": {"odd": {1, 2}}}, tmp_path / "x.pt")

    with pytest.raises(ckpt.UnsupportedStateError, match=r"'model/odd' is a set"):
        torch_file.convert(tmp_path / "x.pt", tmp_path / "c", None)


def test_a_small_pickle_of_endless_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list holds the one before twice: 2^60 values in a kilobyte."""
    monkeypatch.setattr(state, "MAX_RECORDS", 10_000)
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    torch.save(value, tmp_path / "x.pt")

    with pytest.raises(ckpt.UnsupportedStateError, match="more than 10000 values"):
        torch_file.convert(tmp_path / "x.pt", tmp_path / "c", None)


def test_a_pickle_that_asks_for_more_memory_than_its_size_allows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bytearray`` is one of the plain types that torch knows; the child's limit is what stops it at 8 GiB."""
    monkeypatch.setattr(converting, "_MEMORY_BYTES", 2 << 30)
    monkeypatch.setattr(converting, "_MEMORY_BYTES_PER_THREAD", 32 << 20)
    torch.save(bytearray(b"size"), tmp_path / "x.pt")
    pickled(lambda _: b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + bytes(4) + b"\x02\x85R.")(tmp_path / "x.pt")

    with pytest.raises(ckpt.ConversionError, match=r"more than \d+ bytes of memory"):
        ckpt.convert(tmp_path / "x.pt", tmp_path / "c")


def test_a_child_that_takes_too_long_is_ended_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "_CPU_S", 1)  # less than starting takes
    torch.save({"w": torch.ones(4 << 20)}, tmp_path / "x.pt")
    monkeypatch.setattr(converting, "_CPU_BYTES_PER_S", 1 << 40)

    with pytest.raises(ckpt.ConversionError, match="more than 1 s of processor time"):
        ckpt.convert(tmp_path / "x.pt", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_child_that_is_ended_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(9), y=np.zeros(80 << 20, dtype=np.uint8))

    def stop(_done: int, _total: int) -> None:
        assert [*tmp_path.glob(".c.*.saving")]
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        ckpt.convert(tmp_path / "x.npz", tmp_path / "c", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_a_torch_whose_restricted_unpickler_has_holes_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({}, tmp_path / "x.pt")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")

    with pytest.raises(ckpt.ConversionError, match=r"torch is 2\.9\.1\+cpu, expected 2\.10"):
        ckpt.convert(tmp_path / "x.pt", tmp_path / "c")


# --- npz ------------------------------------------------------------------------------------------------------------


def arrays() -> dict[str, Any]:
    return {
        "x": np.arange(5, dtype=np.int16),
        "by_column": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.array(1.5, dtype=np.float32),
        "empty": np.zeros((0, 3)),
        "bits": np.array([True, False]),
        "large": np.arange(5_000_000, dtype=np.uint32).reshape(5, -1),
        "layer/0": np.array([1 + 2j]),
    }


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_of_an_npz_keep_dtype_shape_and_order(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "x.npz", **arrays())

    npz.convert(tmp_path / "x.npz", tmp_path / "c", None, most_bytes=1 << 30)

    assert same(ckpt.load(tmp_path / "c", verify="sha256"), arrays())
    assert ckpt.read_manifest(tmp_path / "c").root == ckpt.save(arrays(), tmp_path / "saved").root


def test_an_array_of_objects_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([Payload(tmp_path / "marker")], dtype=object))

    with pytest.raises(ckpt.ConversionError, match="an array of dtype object"):
        ckpt.convert(tmp_path / "x.npz", tmp_path / "c")
    assert not (tmp_path / "marker").exists()


# --- torch.distributed.checkpoint -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_folder_of_dcp_is_converted_with_its_nesting(tmp_path: Path) -> None:
    state = training_state()
    saved = {"model": state["model"], "random": state["random"], "list": [torch.ones(2), "text"], "epoch": 3}
    dcp.save(saved, checkpoint_id=tmp_path / "dcp")

    manifest = ckpt.convert(tmp_path / "dcp", tmp_path / "c")

    plain = saved | {"model": dict(state["model"])}  # DCP writes one kind of mapping
    assert same(ckpt.load(tmp_path / "c"), plain)
    assert manifest.root == ckpt.save(plain, tmp_path / "saved").root


def test_a_tensor_in_pieces_is_put_together(tmp_path: Path) -> None:
    write_metadata(tmp_path / "dcp", dcp_metadata(tmp_path / "dcp"))

    dcp_folder.convert(tmp_path / "dcp", tmp_path / "c", None)

    assert same(ckpt.load(tmp_path / "c"), {"model": {"w": torch.arange(24.0).reshape(4, 6)}, "counts": [7]})


def test_a_payload_in_the_metadata_of_dcp_is_refused_and_never_runs(tmp_path: Path) -> None:
    dcp_metadata(tmp_path / "dcp")
    write_metadata(tmp_path / "dcp", Payload(tmp_path / "marker"))

    with pytest.raises(ckpt.ConversionError, match=r"asks for 'posix\.mkdir'"):
        ckpt.convert(tmp_path / "dcp", tmp_path / "c")
    assert not (tmp_path / "marker").exists()


def test_a_payload_in_an_item_of_dcp_is_refused_and_never_runs(tmp_path: Path) -> None:
    stated = dcp_metadata(tmp_path / "dcp")
    item = saved(Payload(tmp_path / "marker"))
    (tmp_path / "dcp" / "evil").write_bytes(item)
    place(stated, "n").__dict__.update(relative_path="evil", offset=0, length=len(item))
    write_metadata(tmp_path / "dcp", stated)

    with pytest.raises(ckpt.FormatError, match=r"asks for 'posix\.mkdir'"):
        dcp_folder.convert(tmp_path / "dcp", tmp_path / "c", None)
    assert not (tmp_path / "marker").exists()


# --- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing.pt", "not there"),
        ("fifo.pt", "no regular file"),
        ("folder", "without a .metadata"),
        ("x.safetensors", "ckpt adopt"),
    ],
)
def test_what_is_no_file_of_a_known_kind_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.pt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.safetensors").write_bytes(b"")

    with pytest.raises(ckpt.ConversionError, match=reason):
        ckpt.convert(tmp_path / name, tmp_path / "c")


def test_a_path_that_exists_is_kept(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    (tmp_path / "c").mkdir()

    with pytest.raises(ckpt.DestinationError, match="exists already"):
        ckpt.convert(tmp_path / "x.npz", tmp_path / "c")


def test_the_command_line_converts_and_says_what_it_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(3))

    assert main(["convert", str(tmp_path / "x.npz"), str(tmp_path / "c"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["root"] == ckpt.read_manifest(tmp_path / "c").root
    assert main(["convert", str(tmp_path / "x.pt"), str(tmp_path / "d")]) == 1
    assert "ConversionError" in capsys.readouterr().err


def test_a_disk_that_does_not_read_makes_no_broken_archive() -> None:
    class Broken(io.BytesIO):
        def seek(self, *_: int) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        checked_archive(Broken(), "x.npz", methods={0}, most_bytes=1)
