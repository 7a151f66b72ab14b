"""Several processes save one state together and load it into other shards, through gloo."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import ckpt
import ckpt.distributed
from tests.ckpt.equality import same
from tests.ckpt.gloo import run
from tests.ckpt.sharded import emptied, gathered, local_of, meshes, placing, spread, whole_state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def save_whole_state(rank: int, path: Path) -> ckpt.distributed.Saved:
    state = spread(whole_state(), placing(meshes()))
    return ckpt.distributed.save(state, path, metadata={"step": "10"})


def load_and_save_again(rank: int, path: Path, out: Path) -> tuple[bool, str]:
    """Into shards of this number of processes; whether all is there, and the root of what is saved of it."""
    state = emptied(spread(whole_state(), placing(meshes())))
    ckpt.distributed.load(state, path)
    root = ckpt.distributed.save(state, out).root
    return same(gathered(state), whole_state()), root


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By four processes, then loaded and saved by two, then by four again."""
    folder = tmp_path_factory.mktemp("saved")
    roots = run(4, save_whole_state, folder, folder / "four")
    assert len({made.root for made in roots}) == 1
    return folder


def test_what_several_processes_saved_is_a_checkpoint_like_any_other(saved: Path) -> None:
    assert ckpt.verify(saved / "four").ok
    assert ckpt.verify(saved / "four").foreign == ()
    assert same(ckpt.load(saved / "four"), whole_state())
    assert ckpt.read_manifest(saved / "four").metadata == {"step": "10"}


def test_no_file_is_a_pickle(saved: Path) -> None:
    names = {file.name.partition("-")[0] for file in (saved / "four").iterdir()}

    assert names == {"manifest.pb", "weights", "extra", "model.safetensors.index.json"}


def test_the_consolidated_root_is_that_of_saving_the_whole_state(saved: Path, tmp_path: Path) -> None:
    plain = ckpt.save(whole_state(), tmp_path / "plain", metadata={"step": "10"})

    made = ckpt.consolidate(saved / "four", tmp_path / "whole")

    assert (made.root, made.seal) == (plain.root, plain.seal)


def test_each_process_writes_its_share_and_replicas_are_written_once(saved: Path) -> None:
    manifest = ckpt.read_manifest(saved / "four")
    sizes = [record.size_bytes - record.header_bytes for record in manifest.files if record.name.startswith("extra")]
    whole = sum(tensor.size_bytes for tensor in manifest.tensors if tensor.name != "model/untied")

    assert manifest.payload_bytes == whole
    assert len(sizes) == 4
    assert len(manifest.pieces_of["model/hybrid"]) == 2


def test_tied_shards_are_stored_once(saved: Path) -> None:
    manifest = ckpt.read_manifest(saved / "four")
    loaded = ckpt.load(saved / "four")

    assert manifest.storages_of("model/tied") == manifest.storages_of("model/untied")
    assert loaded["model"]["tied"].data_ptr() == loaded["model"]["untied"].data_ptr()


def test_two_load_what_four_saved_and_four_what_two_saved(saved: Path, tmp_path: Path) -> None:
    two = run(2, load_and_save_again, tmp_path, saved / "four", tmp_path / "two")
    four = run(4, load_and_save_again, tmp_path, tmp_path / "two", tmp_path / "again")

    assert all(complete for complete, _ in two + four)
    assert {root for _, root in four} == {ckpt.read_manifest(saved / "four").root}
    assert two[0][1] != four[0][1]


def load_otherwise(rank: int, paths: list[Path]) -> list[bool]:
    """Rows are loaded into columns and columns into rows, from pieces and from a plain checkpoint."""
    mesh, _ = meshes()
    outcomes = []
    for path in paths:
        wanted = {
            "rows": local_of(torch.zeros(8, 5), mesh, [Shard(1)]),
            "columns": local_of(torch.zeros(6, 10, dtype=torch.bfloat16), mesh, [Shard(0)]),
            "grid": local_of(torch.zeros(7, 9, dtype=torch.int32), mesh, [Replicate()]),
            "uneven": torch.zeros(10, 3, dtype=torch.float64),
        }
        ckpt.distributed.load({"model": wanted}, path, verify="sha256")
        outcomes.append(all(torch.equal(gathered(wanted)[name], whole_state()["model"][name]) for name in wanted))
    return outcomes


def test_any_shards_are_loaded_from_pieces_and_from_plain_checkpoints(saved: Path, tmp_path: Path) -> None:
    ckpt.save(whole_state(), tmp_path / "plain")

    assert run(2, load_otherwise, tmp_path, [saved / "four", tmp_path / "plain"]) == [[True, True]] * 2


def test_one_process_loads_without_the_others(saved: Path) -> None:
    state = emptied(whole_state())

    ckpt.distributed.load(state, saved / "four")

    assert same(state, whole_state())


def test_one_process_alone_saves_the_plain_root(tmp_path: Path) -> None:
    made = ckpt.distributed.save(whole_state(), tmp_path / "alone")

    assert made.root == ckpt.save(whole_state(), tmp_path / "plain").root
    assert ckpt.read_manifest(tmp_path / "alone").pieces == ()


def through_dcp(rank: int, path: Path) -> tuple[bool, bool, str]:
    """The four objects in DCP's own functions, also in the background, and again with the same writer."""
    state = spread({"model": whole_state()["model"]}, placing(meshes()))
    writer = ckpt.distributed.Writer(path / "sync")
    saved = dcp.save(state, storage_writer=writer, planner=ckpt.distributed.SavePlanner())
    dcp.async_save(
        state, checkpoint_id=path / "async", storage_writer=writer, planner=ckpt.distributed.SavePlanner()
    ).result()
    outcomes = []
    for name in ("sync", "async"):
        wanted = emptied(state)
        reader = ckpt.distributed.Reader(path / name)
        dcp.load(wanted, storage_reader=reader, planner=ckpt.distributed.LoadPlanner())
        outcomes.append(same(gathered(wanted), {"model": whole_state()["model"]}))
    return outcomes[0], outcomes[1], saved.storage_data.root


def test_dcps_own_functions_take_the_writer_the_reader_and_the_planners(tmp_path: Path) -> None:
    outcomes = run(2, through_dcp, tmp_path, tmp_path)

    assert [outcome[:2] for outcome in outcomes] == [(True, True)] * 2
    assert {root for *_, root in outcomes} == {ckpt.read_manifest(tmp_path / "sync").root}


def test_each_is_refused_beside_one_of_dcps_own(tmp_path: Path) -> None:
    state, ours = {"w": torch.ones(2)}, ckpt.distributed
    ckpt.save(state, tmp_path / "c")
    calls = {
        "pass planner=SavePlanner": lambda: dcp.save(state, storage_writer=ours.Writer(tmp_path / "x")),
        "plans for ckpt.distributed.Writer": lambda: dcp.save(
            state, checkpoint_id=tmp_path / "x", planner=ours.SavePlanner()
        ),
        "pass planner=LoadPlanner": lambda: dcp.load(state, storage_reader=ours.Reader(tmp_path / "c")),
    }
    for reason, call in calls.items():
        with pytest.raises(dcp.CheckpointException, match=reason):
            call()
    assert not (tmp_path / "x/manifest.pb").exists()


def with_keys_of_their_own(rank: int, path: Path) -> bool:
    """As the stages of a pipeline have them; rank 1 counts for itself."""
    mesh, _ = meshes()
    both = {"shared": local_of(torch.arange(6.0), mesh, [Shard(0)]), f"layer{rank}": torch.full((3,), float(rank))}
    ckpt.distributed.save({"model": both, "counts": {f"of{rank}": rank, "both": rank}}, path)
    wanted = {"model": emptied(both), "counts": {f"of{rank}": None, "both": None}}
    ckpt.distributed.load(wanted, path)
    counts = {f"of{rank}": rank, "both": 0}
    return same(gathered(wanted["model"]), gathered(both)) and wanted["counts"] == counts


def test_states_with_keys_of_their_own_are_united(tmp_path: Path) -> None:
    assert run(2, with_keys_of_their_own, tmp_path, tmp_path / "c") == [True, True]
    assert set(ckpt.load(tmp_path / "c")["model"]) == {"shared", "layer0", "layer1"}
    assert ckpt.load(tmp_path / "c")["counts"] == {"of0": 0, "of1": 1, "both": 0}


def refused(rank: int, path: Path) -> list[tuple[str, str]]:
    """What each process is told of states that cannot be saved or loaded."""
    mesh, _ = meshes()
    shard = local_of(torch.arange(6.0), mesh, [Shard(0)])
    savings: list[Any] = [
        {"w": torch.zeros(3 + rank)},
        {"w": torch.zeros(3)} if rank else {"w": 1},
        {"w": [torch.zeros(1)] * (1 + rank)},
        {"w": shard if rank else torch.zeros(6)},
        {"w": DTensor.from_local(torch.ones(2), mesh, [Partial()])},
        {"w": DTensor.from_local(torch.ones(2), mesh, [Shard(0)], shape=torch.Size([5]), stride=(1,))},
        {"w": object() if rank else 1},
    ]
    loadings: list[Any] = [
        {"v": shard},
        {"w": local_of(torch.arange(8.0), mesh, [Shard(0)])},
        {"w": local_of(torch.arange(6), mesh, [Shard(0)])},
        {"w": 3},
    ]
    told = [_told(partial(ckpt.distributed.save, state, path / "never")) for state in savings]
    ckpt.distributed.save({"w": shard}, path / "c")
    told += [_told(lambda: ckpt.distributed.save({"w": shard}, path / "c"))]
    told += [_told(partial(ckpt.distributed.load, state, path / "c")) for state in loadings]
    told += [_told(lambda: ckpt.distributed.load({}, path / "nothing"))]
    ckpt.distributed.save({"w": shard}, path / "d", metadata={"another": "seal"})
    told += [_told(lambda: ckpt.distributed.load({"w": shard}, path / "cd"[rank]))]
    told += [_told(lambda: ckpt.distributed.load({"w": shard}, path / "c", root="sha256:" + "0" * 64))]
    left = {"v": torch.full((2,), 9.0), "w": emptied(shard)}
    ckpt.distributed.load(left, path / "c", allow_partial_load=True)
    assert left["v"].tolist() == [9, 9]
    assert torch.equal(left["w"].full_tensor(), torch.arange(6.0))
    return told


def _told(call: Any) -> tuple[str, str]:
    try:
        call()
    except ckpt.CheckpointError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def test_every_process_is_told_why_nothing_was_saved_or_loaded(tmp_path: Path) -> None:
    first, second = run(2, refused, tmp_path, tmp_path)

    assert first == second
    expected = [
        ("UnsupportedStateError", "of which rank 0 holds 'w' float32 (3,) at byte 0, and rank 1 'w' float32 (4,)"),
        ("UnsupportedStateError", "a int in one process and a tensor in another"),
        ("UnsupportedStateError", "a list of 1 in one process and a list of 2 in another"),
        (
            "UnsupportedStateError",
            "of which rank 1 holds shards of float32 (6,), in the memory of 'w', and rank 0 whole",
        ),
        ("UnsupportedStateError", "redistribute it to Replicate or Shard first"),
        ("UnsupportedStateError", "a shard of shape (2,) where its placement has (3,)"),
        ("UnsupportedStateError", "the value at 'w' is a object"),
        ("DestinationError", "exists already"),
        ("StateMismatchError", "has nothing at 'v', expected a value"),
        ("StateMismatchError", "has a tensor of torch.float32 (6,) at 'w', expected a tensor of torch.float32 (8,)"),
        ("StateMismatchError", "expected a tensor of torch.int64 (6,)"),
        ("StateMismatchError", "has a tensor of torch.float32 (6,) at 'w', expected a int"),
        ("NotACheckpointError", "found nothing"),
        ("RootMismatchError", "/c' holds sha256:"),
        ("RootMismatchError", "expected sha256:0000"),
    ]
    assert [kind for kind, _ in first] == [kind for kind, _ in expected]
    for (_, message), (_, part) in zip(first, expected, strict=True):
        assert part in message
    assert sorted(path.name for path in tmp_path.iterdir() if "meeting" not in path.name) == ["c", "d"]


def load_damaged(rank: int, path: Path) -> tuple[str, bool, bool]:
    """Rank 0 needs the sound half of the columns; both need a tensor that is sound."""
    mesh, _ = meshes()
    wanted = {"sound": torch.zeros(4), "w": local_of(torch.zeros(4, 6), mesh, [Shard(1)]), "step": 0}
    kind, message = _told(lambda: ckpt.distributed.load(wanted, path))
    return f"{kind}: {message}", not wanted["w"].to_local().any() and not wanted["sound"].any(), wanted["step"] == 0


def save_columns(rank: int, path: Path) -> None:
    mesh, _ = meshes()
    state = {"sound": torch.ones(4), "w": local_of(torch.ones(4, 6), mesh, [Shard(1)]), "step": 1}
    ckpt.distributed.save(state, path)


def test_a_process_whose_piece_is_bad_changes_nothing_and_names_it(tmp_path: Path) -> None:
    run(2, save_columns, tmp_path, tmp_path / "c")
    file = sorted((tmp_path / "c").glob("extra-*"))[1]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    (told, *_), (told_too, unchanged, step) = run(2, load_damaged, tmp_path, tmp_path / "c")

    assert told == told_too
    assert "CorruptChunkError: chunk 0 of the storage of the piece [0:4, 3:6] of 'w'" in told
    assert (unchanged, step) == (True, True)


def test_importing_ckpt_imports_nothing_of_dcp() -> None:
    code = "import ckpt, sys; print([name for name in sys.modules if name.startswith('torch.distributed.checkpoint')])"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)

    assert printed.stdout == "[]\n"


def test_signed_by_the_first_process_and_trusted_by_all(tmp_path: Path) -> None:
    keys = ckpt.keygen(tmp_path / "key.pem")

    outcomes = run(2, save_signed, tmp_path, tmp_path / "c", keys.private, keys.public)

    assert outcomes == [True, True]
    assert ckpt.verify(tmp_path / "c", trust=[keys.public]).ok


def save_signed(rank: int, path: Path, private: Path, public: Path) -> bool:
    mesh, _ = meshes()
    state = {"w": local_of(torch.arange(6.0), mesh, [Shard(0)])}
    ckpt.distributed.save(state, path, sign=private)
    wanted = emptied(state)
    ckpt.distributed.load(wanted, path, trust=[public])
    dist.barrier()
    return torch.equal(wanted["w"].full_tensor(), torch.arange(6.0))
