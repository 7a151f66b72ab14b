"""What a fleet relies on, held by every source: a folder, and the registry on a real MLflow store."""

from pathlib import Path
from typing import Any, Protocol

import pytest

from serving.errors import QuarantinedError, SourceError
from serving.source import Desired, FolderSource, Source, Target


class Publisher(Protocol):
    """A source with the means to move its aliases, for the tests."""

    source: Source

    def promote(self, version: str) -> None: ...
    def quarantine(self, root: str) -> None: ...


class FolderPublisher:
    def __init__(self, shop: Any, folder: Path) -> None:
        (folder / "mini").mkdir()
        for version in "123":
            (folder / "mini" / version).symlink_to(shop.checkpoint(version))
        self.source = FolderSource(folder)

    def promote(self, version: str) -> None:
        self.source.point("mini", alias="champion", version=version)

    def quarantine(self, root: str) -> None:
        self.source.quarantine("mini", root=root)


class RegistryPublisher:
    def __init__(self, shop: Any, folder: Path, uri: str) -> None:
        import registry  # imports MLflow: a second that the other tests do without
        from serving.registry_source import RegistrySource

        self.registry = registry
        self.server = registry.Server(uri=uri, home=folder / "home")
        self.live: int | None = None
        for version in "123":
            registry.publish(shop.checkpoint(version), name="mini", server=self.server)
        self.source = RegistrySource(self.server)

    def promote(self, version: str) -> None:
        self.registry.promote("mini", int(version), expect=self.live, reason="a test", server=self.server)
        self.live = int(version)

    def quarantine(self, root: str) -> None:
        ledger = self.registry.Ledger(self.server.home / "ledger" / "mini.jsonl", model="mini")
        ledger.quarantine(root, alias="champion", author=self.registry.Author(actor="test", reason="a test", at=0.0))


@pytest.fixture(params=["folder", pytest.param("registry", marks=[pytest.mark.integration, pytest.mark.slow])])
def publisher(request: pytest.FixtureRequest, shop: Any, tmp_path: Path) -> Publisher:
    if request.param == "folder":
        return FolderPublisher(shop, tmp_path)
    return RegistryPublisher(shop, tmp_path, request.getfixturevalue("mlflow_server"))


def test_a_source_keeps_its_promises(publisher: Publisher, shop: Any) -> None:
    import ckpt

    source = publisher.source
    with pytest.raises(SourceError, match="mini@champion"):
        source.resolve("mini", "champion")

    publisher.promote("1")
    first = source.resolve("mini", "champion")
    publisher.promote("3")
    third = source.resolve("mini", "champion")
    targets = [source.fetch(desired) for desired in (first, third)]

    assert first == Desired(name="mini", version="1", root=shop.roots["1"])
    assert third == Desired(name="mini", version="3", root=shop.roots["3"])
    for desired, target in zip((first, third), targets, strict=True):
        assert target == Target(desired=desired, folder=target.folder, seal=shop.seals[desired.version])
        assert ckpt.verify(target.folder).ok
        manifest = ckpt.read_manifest(target.folder)
        assert (manifest.root, manifest.seal) == (desired.root, target.seal)
        assert [item.path for item in manifest.attachments] == ["program/program.pb"]

    publisher.quarantine(shop.roots["3"])
    with pytest.raises(QuarantinedError, match=shop.roots["3"]):
        source.resolve("mini", "champion")
    with pytest.raises(SourceError, match="nobody@champion"):
        source.resolve("nobody", "champion")


def test_a_program_exchanged_after_the_first_fetch_changes_no_seal(
    publisher: Publisher, shop: Any, exchange: Any
) -> None:
    publisher.promote("1")
    desired = publisher.source.resolve("mini", "champion")
    first = publisher.source.fetch(desired)

    exchange(first.folder)
    again = publisher.source.fetch(desired)

    assert first.seal == again.seal == shop.seals["1"]


def test_a_pointer_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "aliases.json").write_text("{")

    with pytest.raises(SourceError, match=r"aliases\.json"):
        FolderSource(tmp_path).resolve("mini", "champion")
