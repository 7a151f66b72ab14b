"""Kills, races and strangers: what the registry does when it is not alone and not undisturbed."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ckpt
import registry
from registry.cache import Cache
from registry.fetching import ledger_of
from registry.server import Server

pytestmark = pytest.mark.integration


def save(folder: Path, step: int, *, like: int = 0) -> Path:
    """A checkpoint near those with the same ``like``, and far from all others."""
    weights = torch.linspace(-1, 1, 200_000).bfloat16()
    weights.view(torch.int16)[step::101] += 1
    if like:
        weights.view(torch.int16)[:] ^= torch.randint(-(2**15), 2**15, weights.shape, dtype=torch.int16)
    path = folder / f"step-{like}-{step}"
    ckpt.save({"w": weights}, path)
    return path


@pytest.fixture
def server(mlflow_server: str, tmp_path: Path) -> Server:
    return Server(uri=mlflow_server, home=tmp_path / "home")


STEPS = ["create_model", "upload", "download", "finalize", "create_version"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_leaves_no_half_version(
    step: str, when: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"killed-{step}-{when}"
    real = getattr(Server, step)

    def killed(self: Server, *arguments: object, **named: object) -> object:
        if when == "after":
            real(self, *arguments, **named)
        raise KeyboardInterrupt

    folder = save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Server, step, killed)
        with pytest.raises(KeyboardInterrupt):
            registry.publish(folder, name=name, server=server)

    versions = server.versions(name)
    assert len(versions) == (step == "create_version" and when == "after")
    for version in versions:
        assert ckpt.verify(registry.fetch(version.reference, server=server), root=version.root).ok
    again = registry.publish(save(tmp_path, 2), name=name, server=server)
    assert ckpt.verify(registry.fetch(again.reference, server=server), root=again.root).ok


def test_a_full_copy_is_stored_where_patches_weigh_more_and_deltas_go_on_from_it(
    server: Server, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    folders = [save(tmp_path, 1), save(tmp_path, 2), save(tmp_path, 1, like=1)]
    near = ckpt.load(folders[-1])["w"]
    for step in (1, 2):
        near = near.clone()
        near.view(torch.int16)[torch.randperm(200_000)[:20_000]] += 1
        ckpt.save({"w": near}, tmp_path / f"near-{step}")
        folders.append(tmp_path / f"near-{step}")

    versions = [registry.publish(folder, name="jump", server=server) for folder in folders]

    assert [(version.kind, version.parent) for version in versions] == [
        ("full", None),
        ("delta", 1),
        ("delta", 1),  # far from every other, so nearly as large as a full copy
        ("full", None),
        ("delta", 4),
    ]
    for version, folder in zip(versions, folders, strict=True):
        fetched = registry.fetch(version.reference, cache=tmp_path / f"cache-{version.number}", server=server)
        assert ckpt.read_manifest(fetched).seal == ckpt.read_manifest(folder).seal


def test_strangers_versions_are_no_parents_and_are_named(server: Server, tmp_path: Path) -> None:
    first = registry.publish(save(tmp_path, 1), name="mixed", server=server)
    client, source = server.client, f"models:/{first.model_id}"
    client.create_model_version("mixed", source=source, model_id=first.model_id)
    client.create_model_version("mixed", source=source, model_id=first.model_id, tags={"treering.root": "../../etc"})

    ours = registry.publish(save(tmp_path, 2), name="mixed", server=server)

    assert (ours.number, ours.parent) == (4, 1)
    assert [version.number for version in server.versions("mixed")] == [1, 4]
    for number, why in ((2, "not published by this registry"), (3, "whose tags make no sense"), (9, "versions 1, 4")):
        with pytest.raises(registry.UnknownVersionError, match=why):
            registry.fetch(f"mixed/{number}", server=server)
        with pytest.raises(registry.UnknownVersionError, match=why):
            registry.promote("mixed", number, expect=None, reason="x", server=server)


def test_a_version_whose_parent_was_deleted_is_no_parent(server: Server, tmp_path: Path) -> None:
    for step in (1, 2):
        registry.publish(save(tmp_path, step), name="holes", server=server)
    server.client.delete_model_version("holes", "1")
    shutil.rmtree(server.home)

    with pytest.raises(registry.UnknownVersionError, match="no version 1 that its delta is made from"):
        registry.fetch("holes/2", server=server)
    version = registry.publish(save(tmp_path, 3), name="holes", server=server)

    assert (version.kind, version.parent) == ("full", None)


def test_an_alias_moved_by_hand_is_moved_back_by_sync(server: Server, tmp_path: Path) -> None:
    """docs/decisions/0003-the-ledger-is-a-file.md: this machine believes its ledger, another one MLflow."""
    first, second = (registry.publish(save(tmp_path, step), name="hand", server=server) for step in (1, 2))
    registry.promote("hand", 1, expect=None, reason="first", server=server)
    server.set_alias("hand", "champion", 2)
    elsewhere = Server(uri=server.uri, home=tmp_path / "elsewhere")

    assert registry.resolve("hand@champion", server=server).root == first.root
    assert registry.resolve("hand@champion", server=elsewhere).root == second.root
    registry.sync("hand", server=server)

    assert registry.resolve("hand@champion", server=elsewhere).root == first.root


def test_a_move_that_mlflow_did_not_see_is_shown_by_the_next_call(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = (registry.publish(save(tmp_path, step), name="away", server=server) for step in (1, 2))
    for number, expect in ((1, None), (2, 1)):
        registry.promote("away", number, expect=expect, reason="x", server=server)

    def away(*_: object) -> None:
        raise registry.RegistryUnavailableError(server.uri, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(Server, "set_alias", away)
        with pytest.raises(registry.RegistryUnavailableError):
            registry.rollback("away", suspect=second.root, reason="odd", server=server)
    assert (server.alias("away", "champion"), ledger_of("away", server).live("champion").version) == (2, 1)
    entry = registry.rollback("away", suspect=second.root, reason="odd", server=server)

    assert (entry.action, server.alias("away", "champion")) == ("nothing", 1)
    assert server.versions("away")[1].tags["treering.quarantined"] == "odd"
    registry.clear("away", second.root, reason="looked at", server=server)
    assert "treering.quarantined" not in server.versions("away")[1].tags


def test_a_damaged_base_in_the_cache_is_brought_anew(server: Server, tmp_path: Path) -> None:
    for step in (1, 2):
        registry.publish(save(tmp_path, step), name="base", server=server)
    cache = tmp_path / "cache"
    base = registry.fetch("base/1", cache=cache, server=server)
    file = next(base.glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")

    made = registry.fetch("base/2", cache=cache, server=server)

    assert ckpt.verify(made).ok
    assert ckpt.verify(base).ok


def test_only_the_checkpoint_goes_up_and_its_facts_are_its_own(server: Server, tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    (folder / ".env").write_text("secret")
    with pytest.raises(registry.ForeignFileError, match=r"found '\.env'"):
        registry.publish(folder, name="clean", server=server)
    (folder / ".env").unlink()

    version = registry.publish(folder, name="clean", tags={"root": "another", "note": "kept"}, server=server)

    assert version.root == ckpt.read_manifest(folder).root
    assert version.tags["treering.note"] == "kept"


_FETCH = """
import sys, registry
from pathlib import Path
from registry.server import Server
server = Server(uri=sys.argv[1], home=Path(sys.argv[2]))
if sys.argv[3] == "fetch":
    for _ in range(3):
        print(registry.fetch("many/3", cache=sys.argv[4], server=server))
else:
    print(registry.publish(sys.argv[4], name="crowd", server=server).number)
"""


def _start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _FETCH, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def test_two_processes_share_one_cache(server: Server, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        registry.publish(save(tmp_path, step), name="many", server=server)
    cache = tmp_path / "cache"

    both = [_start(server.uri, tmp_path / "home", "fetch", cache) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    assert {line for output, _ in outputs for line in output.split()} == {
        str(Cache(cache).path(registry.resolve("many/3", server=server).seal))
    }
    assert all(ckpt.verify(folder).ok for folder in (cache / "checkpoints").iterdir())
    assert [entry.name for entry in (cache / "work").iterdir()] == ["lock"]


@pytest.mark.slow
def test_two_publishers_of_one_name_get_a_version_each(server: Server, tmp_path: Path) -> None:
    registry.publish(save(tmp_path, 1), name="crowd", server=server)

    both = [_start(server.uri, tmp_path / f"home-{step}", "publish", save(tmp_path, step)) for step in (2, 3)]
    outputs = [process.communicate(timeout=120) for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted(output.strip() for output, _ in outputs) == ["2", "3"]
    for version in server.versions("crowd"):
        folder = registry.fetch(version.reference, cache=tmp_path / f"cache-{version.number}", server=server)
        assert ckpt.read_manifest(folder).seal == version.seal


def _hold_a_workspace(cache: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with Cache(cache).workspace() as folder:
        (folder / "half").write_text("half")
        ready.set()
        os.kill(os.getpid(), 9)


def test_a_killed_process_leaves_no_workspace_behind(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=_hold_a_workspace, args=(tmp_path, ready))
    child.start()
    child.join(timeout=60)
    assert ready.is_set()

    with Cache(tmp_path).workspace() as mine, Cache(tmp_path).workspace() as other:
        assert sorted(entry.name for entry in (tmp_path / "work").iterdir()) == sorted([mine.name, other.name, "lock"])
