"""Artifacts that lie, put where ours are expected: a model of a stranger behind our alias, things exchanged by hand.

Payloads are real: each would make a marker if anything unpickled it, which one test does to show that it would.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import ckpt
import registry
from registry.cache import Cache
from registry.server import Server

pytestmark = pytest.mark.integration

_FOREIGN_CLIENT = """
import os, sys
from mlflow.pyfunc import PythonModel, save_model

class Payload:
    def __reduce__(self):
        return os.mkdir, (sys.argv[2],)

class Stranger(PythonModel):
    payload = Payload()
    def predict(self, context, model_input, params=None):
        return model_input

save_model(sys.argv[1], python_model=Stranger(), pip_requirements=[])
"""


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return os.mkdir, (self.marker,)


@dataclass(frozen=True)
class Foreign:
    """A model folder as MLflow's users write one, its code pickled; ``marker`` appears when that is unpickled."""

    folder: Path
    marker: Path


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    place = tmp_path_factory.mktemp("foreign")
    made = Foreign(folder=place / "model", marker=place / "marker")
    subprocess.run([sys.executable, "-c", _FOREIGN_CLIENT, str(made.folder), str(made.marker)], check=True)
    return made


@pytest.fixture
def server(mlflow_server: str, tmp_path: Path) -> Server:
    return Server(uri=mlflow_server, home=tmp_path / "home")


def save(folder: Path, step: int, *, program: bytes = b"a program") -> Path:
    """A checkpoint whose weights move a little with each step, with a program attached."""
    weights = torch.linspace(-1, 1, 200_000).bfloat16()
    weights.view(torch.int16)[step::101] += 1
    file = folder / f"program-{step}-{len(program)}"
    file.write_bytes(program)
    path = folder / f"step-{step}-{len(program)}"
    ckpt.save({"w": weights}, path, attachments={"program/program.pb": file})
    return path


def put_behind_alias(server: Server, name: str, foreign: Foreign, *, part: str | None, tags: dict[str, str]) -> None:
    """Make the foreign model a version, and let the alias name it."""
    model = server.create_model(name, name=name, run_id=None, tags={})
    server.upload(model.model_id, foreign.folder, part=part)
    server.finalize(model.model_id, ready=True)
    tags = {**tags, "treering.location": model.artifact_location} if tags else {}
    number = server.create_version(name, model_id=model.model_id, run_id=None, tags=tags, description="")
    server.set_alias(name, "champion", number)


def test_the_payload_is_a_live_one(foreign: Foreign) -> None:
    unpickle = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    subprocess.run([sys.executable, "-c", unpickle, str(foreign.folder / "python_model.pkl")], check=True)

    assert foreign.marker.exists()
    foreign.marker.rmdir()


def test_a_pickled_model_behind_our_alias_is_refused(server: Server, foreign: Foreign) -> None:
    put_behind_alias(server, "stranger", foreign, part=None, tags={})

    for call in (registry.resolve, registry.fetch):
        with pytest.raises(registry.UnknownVersionError, match="not published by this registry"):
            call("stranger@champion", server=server)
    with pytest.raises(registry.UnknownVersionError, match="not published by this registry"):
        registry.promote("stranger", 1, expect=None, reason="x", server=server)

    assert not foreign.marker.exists()


def test_a_pickled_model_that_carries_our_tags_is_refused(server: Server, foreign: Foreign, tmp_path: Path) -> None:
    """Tags are free to write; the bytes are what is believed."""
    ours = registry.publish(save(tmp_path, 1), name="forged", server=server)
    shutil.rmtree(server.home)
    put_behind_alias(server, "forged", foreign, part="checkpoint", tags=dict(ours.tags))

    assert registry.resolve("forged@champion", server=server).number == 2
    with pytest.raises(ckpt.NotACheckpointError):
        registry.fetch("forged@champion", server=server)

    assert Cache(server.home / "cache").held() == frozenset()
    assert not foreign.marker.exists()


def test_a_fleet_does_not_start_on_a_pickled_model(server: Server, foreign: Foreign, tmp_path: Path) -> None:
    put_behind_alias(server, "unserved", foreign, part=None, tags={})
    command = [sys.executable, "-m", "serving", "fleet", "--model", "unserved@champion", "--port", "0"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": server.uri, "TREERING_HOME": str(server.home)}

    done = subprocess.run(
        [*command, "--state", str(tmp_path / "state")], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "SourceError: alias 'unserved@champion'" in done.stderr
    assert "not published by this registry" in done.stderr
    assert not foreign.marker.exists()


def exchange(server: Server, version: registry.Version, folder: Path, file: str) -> None:
    """Put one file of another checkpoint into the artifacts of a version, as someone with access to the store would."""
    part = folder.parent / f"exchanged-{Path(file).name}"
    (part / file).parent.mkdir(parents=True)
    shutil.copy(folder / file, part / file)
    server.upload(version.model_id, part, part="checkpoint")


@pytest.mark.parametrize(
    ("file", "error"),
    [("program/program.pb", ckpt.IntegrityError), ("manifest.pb", ckpt.CheckpointError)],
)
def test_a_file_of_another_version_in_the_store_is_refused(
    file: str, error: type[Exception], server: Server, tmp_path: Path
) -> None:
    name = f"store-{Path(file).stem}"
    other = save(tmp_path, 2, program=b"b program")
    version = registry.publish(save(tmp_path, 1), name=name, server=server)
    shutil.rmtree(server.home)
    exchange(server, version, other, file)

    with pytest.raises(error):
        registry.fetch(f"{name}/1", server=server)

    assert Cache(server.home / "cache").held() == frozenset()


def test_a_sound_checkpoint_of_the_same_weights_with_another_program_is_refused(server: Server, tmp_path: Path) -> None:
    """Its root is right and every byte verifies: the seal in the tag tells them apart."""
    version = registry.publish(save(tmp_path, 1), name="resealed", server=server)
    other = save(tmp_path, 1, program=b"another program")
    shutil.rmtree(server.home)
    server.upload(version.model_id, other, part="checkpoint")

    assert ckpt.read_manifest(other).root == version.root
    with pytest.raises(registry.RegistryError, match="someone altered one of them"):
        registry.fetch("resealed/1", server=server)

    assert Cache(server.home / "cache").held() == frozenset()


EXCHANGED = {
    "program": ["program/program.pb"],
    "manifest": ["manifest.pb"],
    "all of it": ["program/program.pb", "manifest.pb"],
}


@pytest.mark.parametrize("what", EXCHANGED)
def test_what_was_exchanged_in_the_cache_is_brought_anew(what: str, server: Server, tmp_path: Path) -> None:
    name = f"cache-{what[:3]}"
    version = registry.publish(save(tmp_path, 1), name=name, server=server)
    other = save(tmp_path, 1, program=b"another program")
    folder = registry.fetch(f"{name}/1", server=server)
    for file in EXCHANGED[what]:
        shutil.copy(other / file, folder / file)

    again = registry.fetch(f"{name}/1", server=server)

    assert ckpt.read_manifest(again).seal == version.seal
    assert (again / "program" / "program.pb").read_bytes() == b"a program"
    assert ckpt.verify(again).ok


def test_a_pt_file_is_no_checkpoint(server: Server, tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "folder"
    folder.mkdir()
    torch.save(Payload(marker), tmp_path / "weights.pt")
    torch.save(Payload(marker), folder / "manifest.pb")

    for place, error in ((tmp_path / "weights.pt", ckpt.NotACheckpointError), (folder, ckpt.CheckpointError)):
        with pytest.raises(error):
            registry.publish(place, name="pt", server=server)
        for read in (ckpt.load, ckpt.read_manifest):
            with pytest.raises(error):
                read(place)

    assert not marker.exists()
    torch.load(tmp_path / "weights.pt", weights_only=False)
    assert marker.exists()
