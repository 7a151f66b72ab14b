"""What a person finds in MLflow's pages: versions, aliases, how bytes are checked, the chain drawn, the report."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ckpt
import registry
from registry.server import Server
from tests.browser import CHROMIUM, Browser, browser

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; SYSTEM_DEPS=1 make system-deps"),
]
COMPILED = "# Compiled\n\n| pass | what |\n|---|---|\n| fold | one Conv and its BatchNorm |\n"


@pytest.fixture(scope="module")
def server(mlflow_server: str, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Three versions, of which the third was taken back."""
    folder = tmp_path_factory.mktemp("pages")
    server = Server(uri=mlflow_server, home=folder / "home")
    weights = torch.linspace(-1, 1, 200_000).bfloat16()
    for number in (1, 2, 3):
        weights.view(torch.int16)[number::501] += 1
        ckpt.save({"layers.0.weight": weights}, folder / f"step-{number}")
        version = registry.publish(
            folder / f"step-{number}", name="paged", pages={"compile.md": COMPILED}, server=server
        )
        registry.promote("paged", number, expect=number - 1 or None, reason="better", server=server)
    registry.rollback("paged", suspect=version.root, reason="anomaly score 4.4", server=server)
    return server


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as one:
        yield one


def test_a_person_finds_which_version_is_served(server: Server, person: Browser) -> None:
    text = person.open(f"{server.uri}/#/models/paged", "Version 1", "Version 2", "Version 3", "champion", "previous")

    assert "delta on version 1" in text
    assert "treering.quarantined" in text


def test_a_person_finds_the_pages_of_a_version(server: Server, person: Browser) -> None:
    version = server.versions("paged")[2]
    experiment = server.experiment("paged")
    person.open(f"{server.uri}/#/models/paged/versions/3", "Its pages", version.root, "smaller than a full copy")

    person.open(f"{server.uri}/#/experiments/{experiment}/models/{version.model_id}/artifacts", "integrity.md")
    integrity = person.click("integrity.md", "Integrity of paged", "layers.0.weight", version.root)
    chain = person.click("chain.html", "versions and deltas", "v1 · full", "v2 · delta on v1", "v3 · delta on v1")
    compiled = person.click("compile.md", "one Conv and its BatchNorm")

    assert "python -m ckpt verify" in integrity
    assert "bytes stored of" in chain
    assert "| fold |" not in compiled  # a table, not its source
