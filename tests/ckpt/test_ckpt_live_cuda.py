"""Live memory on a GPU: there and back at the same addresses, one call a storage, and from a record."""

from pathlib import Path

import pytest
import torch

import ckpt
from tests.ckpt.equality import same
from tests.ckpt.live_states import State, deltas_of, manifest, several

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    deltas_of(folder, *several())
    return folder


def on_gpu(folder: Path, number: int) -> State:
    loaded: State = ckpt.load(folder / f"{number}", device="cuda")
    return loaded


def equal(live: State, folder: Path, number: int) -> bool:
    expected: State = ckpt.load(folder / f"{number}")
    return same({k: v.contiguous().cpu() for k, v in live.items()}, {k: v.contiguous() for k, v in expected.items()})


def test_it_goes_there_and_back_at_the_same_addresses(pair: Path) -> None:
    live = on_gpu(pair, 0)
    places = {name: tensor.data_ptr() for name, tensor in live.items()}

    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    assert equal(live, pair, 0)
    patch.apply()
    patch.apply()

    assert equal(live, pair, 1)
    assert patch.confirm().root == manifest(pair, 1).root
    patch.undo()
    patch.undo()
    assert equal(live, pair, 0)
    assert patch.confirm().root == manifest(pair, 0).root
    assert {name: tensor.data_ptr() for name, tensor in live.items()} == places


def test_a_storage_is_written_by_one_call_from_values_on_the_gpu(pair: Path) -> None:
    live = on_gpu(pair, 0)

    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))

    (number,) = (record.storage for name, record in manifest(pair, 0).by_name.items() if name == "sparse")
    (write,) = (write for write in patch._writes if write.storage == number)
    assert write.positions is not None
    assert (write.positions.is_cuda, write.old.is_cuda, write.new.is_cuda) == (True, True, True)


def test_work_on_the_current_stream_sees_what_was_written(pair: Path) -> None:
    live = on_gpu(pair, 0)
    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    before = live["dense"].double().sum()

    patch.apply()
    after = live["dense"].double().sum()

    assert after.item() == pytest.approx(1.5 * before.item(), rel=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_record_takes_it_to_either_end(share: float, pair: Path, tmp_path: Path) -> None:
    live = on_gpu(pair, 0)
    first = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    first.save(tmp_path / "record")
    for write in first._writes[: int(len(first._writes) * share)]:
        write.put(write.new)

    patch = ckpt.staged(tmp_path / "record", live)
    patch.apply()
    assert equal(live, pair, 1)
    ckpt.staged(tmp_path / "record", live).undo()

    assert equal(live, pair, 0)


def test_memory_that_holds_another_state_is_refused(pair: Path) -> None:
    live = on_gpu(pair, 0)
    live["sparse"][2_000_000] += 1

    with pytest.raises(ckpt.LiveChunkError) as caught:
        ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))

    assert (caught.value.owner, caught.value.chunk) == ("the storage of 'sparse'", 3)
