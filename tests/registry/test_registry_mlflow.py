"""Publish, fetch, promote and roll back against a real MLflow server."""

import os
import shutil
from pathlib import Path

import httpx
import pytest
import torch

import ckpt
import registry
from registry.cache import Cache
from registry.server import Server

pytestmark = pytest.mark.integration


def save(folder: Path, step: int, *, attachment: Path | None = None) -> Path:
    """A checkpoint whose weights move a little with each step."""
    weights = torch.linspace(-1, 1, 200_000).bfloat16()
    weights.view(torch.int16)[step::101] += 1
    path = folder / f"step-{step}"
    ckpt.save({"w": weights, "b": torch.zeros(8)}, path, attachments={"program/p": attachment} if attachment else {})
    return path


@pytest.fixture
def server(mlflow_server: str, tmp_path: Path) -> Server:
    return Server(uri=mlflow_server, home=tmp_path / "home")


def test_versions_are_full_then_deltas_and_come_back_exactly(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(os.urandom(50_000))
    folders = [save(tmp_path, step, attachment=program) for step in (1, 2, 3, 4)]

    versions = [registry.publish(folder, name="chain", server=server) for folder in folders]

    assert [version.number for version in versions] == [1, 2, 3, 4]
    assert [version.kind for version in versions] == ["full", "delta", "delta", "delta"]
    assert [version.parent for version in versions] == [None, 1, 1, 3]
    assert all(version.ratio > 20 for version in versions[1:])
    for version, folder in zip(versions, folders, strict=True):
        fetched = registry.fetch(version.reference, cache=tmp_path / f"cache{version.number}", server=server)
        assert ckpt.read_manifest(fetched).seal == ckpt.read_manifest(folder).seal == version.seal
        assert (fetched / "program" / "p").read_bytes() == program.read_bytes()


def test_a_fetch_downloads_the_delta_only(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        registry.publish(save(tmp_path, step), name="cheap", server=server)
    registry.fetch("cheap/1", cache=tmp_path / "cache", server=server)
    downloads: list[str] = []
    download = Server.download
    monkeypatch.setattr(
        Server,
        "download",
        lambda self, location, part, out: downloads.append(part) or download(self, location, part, out),
    )

    registry.fetch("cheap/2", cache=tmp_path / "cache", server=server)
    registry.fetch("cheap/2", cache=tmp_path / "cache", server=server)

    assert downloads == ["delta"]


def test_a_damaged_cache_is_mended_by_fetching_again(server: Server, tmp_path: Path) -> None:
    version = registry.publish(save(tmp_path, 1), name="mend", server=server)
    folder = registry.fetch("mend/1", server=server)
    file = next(folder.glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")

    again = registry.fetch("mend/1", server=server)

    assert ckpt.verify(again, root=version.root).ok


def test_promotion_moves_the_alias_and_rollback_moves_it_back(server: Server, tmp_path: Path) -> None:
    first, second = (registry.publish(save(tmp_path, step), name="moves", server=server) for step in (1, 2))

    registry.promote("moves", 1, expect=None, reason="first", server=server)
    registry.promote("moves", 2, expect=1, reason="better", server=server)
    assert server.alias("moves", "champion") == 2
    assert server.alias("moves", "previous") == 1
    entry = registry.rollback("moves", suspect=second.root, reason="output mean off", server=server)
    again = registry.rollback("moves", suspect=second.root, reason="output mean off", server=server)

    assert (entry.action, again.action) == ("rollback", "nothing")
    assert server.alias("moves", "champion") == 1
    assert server.alias("moves", "previous") is None  # version 2 was, and nothing healthy was live before version 1
    assert registry.resolve("moves@champion", server=server).root == first.root
    assert server.versions("moves")[1].tags["treering.quarantined"] == "output mean off"
    with pytest.raises(registry.QuarantinedError):
        registry.promote("moves", 2, expect=1, reason="again", server=server)


def test_a_version_carries_what_a_person_wants_to_see(server: Server, tmp_path: Path) -> None:
    version = registry.publish(
        save(tmp_path, 1), name="seen", tags={"git_commit": "abc"}, pages={"compile.md": "# Compiled"}, server=server
    )

    pages = server.download(version.location, "", tmp_path / "pages")

    assert version.tags["treering.git_commit"] == "abc"
    assert version.root in (pages / "integrity.md").read_text()
    assert "<svg" in (pages / "chain.html").read_text()
    assert (pages / "compile.md").read_text() == "# Compiled"


def test_a_corrupt_checkpoint_is_not_published(server: Server, tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    file = next(folder.glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")

    with pytest.raises(ckpt.CorruptChunkError):
        registry.publish(folder, name="corrupt", server=server)

    assert server.versions("corrupt") == []


def test_a_publication_that_breaks_off_leaves_a_visible_pending_and_no_version(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Server, "download", broken)
        with pytest.raises(KeyboardInterrupt):
            registry.publish(folder, name="crash", server=server)

    models = server.client.search_logged_models([server.experiment("crash")])
    assert [model.status for model in models] == ["PENDING"]
    assert server.versions("crash") == []
    assert registry.publish(save(tmp_path, 2), name="crash", server=server).number == 1


def test_what_was_altered_on_the_server_is_refused(server: Server, tmp_path: Path) -> None:
    version = registry.publish(save(tmp_path, 1), name="altered", server=server)
    shutil.rmtree(server.home)
    part = server.download(version.location, "checkpoint", tmp_path / "copy")
    file = next(part.glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    server.upload(version.model_id, part, part="checkpoint")

    with pytest.raises(ckpt.CorruptChunkError):
        registry.fetch("altered/1", server=server)

    assert Cache(server.home / "cache").held() == frozenset()


@pytest.mark.parametrize("reference", ["nobody/1", "nobody@champion", "nobody"])
def test_what_does_not_exist_is_named(reference: str, server: Server) -> None:
    with pytest.raises(registry.UnknownVersionError, match=f"'{reference}' names no version"):
        registry.fetch(reference, server=server)


def test_a_server_that_is_down_is_named(tmp_path: Path) -> None:
    server = Server(uri="http://127.0.0.1:9", home=tmp_path)

    with pytest.raises(registry.RegistryUnavailableError, match=r"127.0.0.1:9 does not answer: .*python -m flows up"):
        registry.fetch("mnist@champion", server=server)


def test_the_ui_answers(mlflow_server: str) -> None:
    assert httpx.get(mlflow_server).status_code == 200


def test_the_newest_run_with_a_parameter_is_found(server: Server) -> None:
    assert server.newest_params("trained", having="seed") is None

    for seed in ("3", "12"):
        run = server.start_run("trained", name=f"seed {seed}", tags={})
        server.describe(run, params={"seed": seed, "plan": "full"})
    server.start_run("trained", name="killed before it said its seed", tags={})

    assert server.newest_params("trained", having="seed") == {"seed": "12", "plan": "full"}
