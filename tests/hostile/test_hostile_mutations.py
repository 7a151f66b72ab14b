"""Whatever is changed in a manifest or delta that is sealed again: it is refused, or it is what it states."""

import contextlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt
from ckpt.format.state import Kind
from ckpt.proto.checkpoint_pb2 import Manifest
from tests.hostile.edits import (
    copied,
    forge_files,
    mutate,
    node,
    put,
    refresh_frames,
    rewrite_delta,
    rewrite_manifest,
    save_pair,
    save_victim,
    storage,
)
from tests.hostile.lies import Lie
from tests.hostile.lying_manifests import STATE, TENSORS, WRAPPING, place_in


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    save_victim(folder)
    return folder / "victim"


def test_the_victim_itself_is_sound(victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lambda message: None)

    assert ckpt.verify(folder, root=ckpt.read_manifest(victim).root).ok
    ckpt.load(folder)


@pytest.mark.parametrize("lie", [pytest.param(lie, id=name) for name, lie in (TENSORS | WRAPPING | STATE).items()])
def test_forged_headers_do_not_help_a_lie(lie: Lie, victim: Path, tmp_path: Path) -> None:
    """The files are made to fit the manifest, so that only its own rules are left to refuse it."""
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lie.tell)
    with contextlib.suppress(ckpt.FormatError, IndexError, KeyError):  # of what no header can be derived from
        forge_files(folder)

    with pytest.raises(ckpt.FormatError):
        ckpt.load(folder)


@pytest.mark.parametrize(("name", "kind"), [("ints", "extra"), ("odd", "weights")])
def test_a_storage_in_the_other_kind_of_file_is_refused(name: str, kind: str, victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")

    def edit(message: Manifest) -> None:
        old = message.files[storage(message, name).file].name
        place_in(message, name, f"{kind}-")
        (folder / old).rename(folder / message.files[storage(message, name).file].name)

    rewrite_manifest(folder, edit)
    forge_files(folder)

    with pytest.raises(ckpt.FormatError):
        ckpt.load(folder)


def test_a_device_that_this_torch_lacks_is_named_when_it_is_loaded(victim: Path, tmp_path: Path) -> None:
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, lambda message: put(node(message, Kind.DEVICE), data=b"toaster:1"))

    assert ckpt.verify(folder).ok
    with pytest.raises(ckpt.VersionError, match=r"'toaster:1'.*a torch that has it"):
        ckpt.load(folder)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 3), forged=st.booleans())
def test_any_mutation_of_a_manifest_is_refused_or_loads(
    seed: int, changes: int, forged: bool, victim: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copied(victim, tmp_path_factory.mktemp("mutated") / "c")
    choose = Random(seed)

    def edit(message: Manifest) -> None:
        for _ in range(changes):
            mutate(message, choose)

    rewrite_manifest(folder, edit)
    if forged:
        with contextlib.suppress(ckpt.FormatError, IndexError, KeyError, FileNotFoundError):
            forge_files(folder)

    try:
        ckpt.load(folder, verify="sha256")
    except ckpt.CheckpointError:
        return
    attached = {item.path for item in ckpt.read_manifest(folder).attachments}
    assert {fault.facts["file"] for fault in ckpt.verify(folder).faults} <= attached


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile-delta")
    save_pair(folder)
    return folder


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), inside=st.booleans())
def test_any_mutation_of_a_delta_is_refused_or_makes_what_it_states(
    seed: int, inside: bool, pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = tmp_path_factory.mktemp("mutated")
    delta = copied(pair / "delta", work / "d")
    if inside:
        refresh_frames(delta, Random(seed))
    else:
        rewrite_delta(delta, lambda message: mutate(message, Random(seed)))

    try:
        made = ckpt.apply(pair / "old", delta, work / "made")
    except ckpt.CheckpointError:
        assert [path.name for path in work.iterdir()] == ["d"]
        return
    assert made.seal == ckpt.read_delta(delta).target_seal


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), inside=st.booleans(), with_base=st.booleans())
def test_any_mutation_of_a_delta_is_refused_or_makes_a_delta_that_can_be_read(
    seed: int, inside: bool, with_base: bool, pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Between two sound ones, so that its frames meet theirs; what cannot be told without the base is seen to later."""
    work = tmp_path_factory.mktemp("mutated")
    delta = copied(pair / "delta", work / "d")
    ckpt.diff(pair / "new", pair / "old", work / "back", codecs=("sparse", "planes"))
    if inside:
        refresh_frames(delta, Random(seed))
    else:
        rewrite_delta(delta, lambda message: mutate(message, Random(seed)))

    for name, call in (
        ("squashed", lambda out: ckpt.squash([delta, work / "back"], out, base=pair / "old" if with_base else None)),
        ("inverted", lambda out: ckpt.invert(delta, out, base=pair / "old")),
    ):
        try:
            made = call(work / name)
        except ckpt.CheckpointError:
            assert not (work / name).exists()
        else:
            assert made == ckpt.read_delta(work / name)
    assert not [path for path in work.iterdir() if path.name.startswith(".")]
