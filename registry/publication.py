"""Publish a checkpoint: two phases, read back before anyone can see it.

A logged model stays PENDING while its artifacts go up; they are downloaded again and verified; then it becomes
READY, then a model version appears, then (by promotion) an alias. A crash anywhere leaves a visible PENDING and
never half a version. What is stored is a delta on an earlier version where that is smaller.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ckpt
from registry.cache import Cache
from registry.errors import PublishError
from registry.fetching import fetch_version
from registry.pages import chain, write_pages
from registry.server import PREFIX, Server
from registry.versions import DELTA, FULL, Version, fetch_bytes, parent_of, valid_name

CHECKPOINT_PART, DELTA_PART = "checkpoint", "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What goes up: a folder of its own under ``part``, and what it weighs."""

    kind: str
    part: str
    folder: Path
    parent: Version | None
    stored_bytes: int


def publish(
    checkpoint: Path | str,
    *,
    name: str,
    metrics: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
    pages: Mapping[str, str] | None = None,
    run_id: str | None = None,
    server: Server | None = None,
) -> Version:
    """Make a checkpoint a version of a model.

    Args:
        checkpoint: A checkpoint folder; a compiled program travels as its attachments.
        name: The registered model.
        metrics: Shown with the version's run.
        tags: More tags for the version, under the prefix ``treering.``: git commit, flow run, program digest.
        pages: More files for people, name → text (a compile report, say).
        run_id: The MLflow run it comes from.
        server: Where; by default what the environment says.

    Returns:
        The version, visible to everyone, without an alias yet.

    Raises:
        IntegrityError: the checkpoint itself is not sound.
        PublishError: what was uploaded did not read back.
        RegistryUnavailableError: the server does not answer.
    """
    started = time.monotonic()
    server = server or Server.from_environment()
    source = Path(checkpoint)
    valid_name(name)
    ckpt.verify(source).raise_on_fault()
    manifest = ckpt.read_manifest(source)
    cache = Cache(server.home / "cache")
    with cache.workspace() as workspace:
        stored = _choose(source, workspace, server=server, cache=cache, name=name)
        facts = _facts(manifest, stored, full_bytes=weight(source), extra=tags or {})
        model = server.create_model(name, name=name, run_id=run_id, tags=facts)
        _upload(server, model.model_id, workspace, source, stored, name=name, pages=pages or {})
        _read_back(server, model.model_id, model.artifact_location, stored, manifest, workspace, name=name)
    server.finalize(model.model_id, ready=True)
    if run_id is not None and metrics:
        server.log(run_id, metrics=metrics)
    facts |= {
        f"{PREFIX}model_id": model.model_id,
        f"{PREFIX}location": model.artifact_location,
        f"{PREFIX}publish_seconds": f"{time.monotonic() - started:.3f}",
    }
    number = server.create_version(
        name, model_id=model.model_id, run_id=run_id, tags=facts, description=_description(facts)
    )
    cache.add(source, manifest.seal)
    return next(version for version in server.versions(name) if version.number == number)


def weight(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _choose(source: Path, workspace: Path, *, server: Server, cache: Cache, name: str) -> _Stored:
    """A delta where all patches from a full copy on weigh less than a full copy; else a full one."""
    full = _Stored(kind=FULL, part=CHECKPOINT_PART, folder=source, parent=None, stored_bytes=weight(source))
    versions = server.versions(name)
    parent = parent_of(versions)
    if parent is None:
        return full
    base = fetch_version(parent, versions, cache=cache, server=server)
    delta = ckpt.diff(base, source, workspace / "made")
    by_number = {version.number: version for version in versions}
    first = next((step for step in versions if step.kind == FULL), parent)
    patches = fetch_bytes(parent, by_number, frozenset({first.seal})) + delta.size_bytes
    if patches >= full.stored_bytes:
        return full
    return _Stored(kind=DELTA, part=DELTA_PART, folder=workspace / "made", parent=parent, stored_bytes=delta.size_bytes)


def _facts(manifest: ckpt.Manifest, stored: _Stored, *, full_bytes: int, extra: Mapping[str, str]) -> dict[str, str]:
    facts = {
        "root": manifest.root,
        "seal": manifest.seal,
        "kind": stored.kind,
        "parent": str(stored.parent.number) if stored.parent else "",
        "parent_root": stored.parent.root if stored.parent else "",
        "stored_bytes": str(stored.stored_bytes),
        "full_bytes": str(full_bytes),
        "ratio": f"{full_bytes / stored.stored_bytes:.1f}",
        **extra,
    }
    return {PREFIX + key: value for key, value in facts.items() if value}


def _upload(
    server: Server,
    model_id: str,
    workspace: Path,
    source: Path,
    stored: _Stored,
    *,
    name: str,
    pages: Mapping[str, str],
) -> None:
    folder = workspace / "pages"
    folder.mkdir()
    manifest = ckpt.read_manifest(source)
    full_bytes = weight(source)
    write_pages(folder, manifest, name=name, kind=stored.kind, stored_bytes=stored.stored_bytes, full_bytes=full_bytes)
    versions = server.versions(name)
    (folder / "chain.html").write_text(chain([*versions, _announced(name, versions, stored, manifest)]), "utf-8")
    for page, text in pages.items():
        (folder / page).write_text(text, "utf-8")
    server.upload(model_id, folder)
    server.upload(model_id, stored.folder, part=stored.part)


def _announced(name: str, versions: Sequence[Version], stored: _Stored, manifest: ckpt.Manifest) -> Version:
    """The version that is about to be, for the picture: MLflow counts on from the last one."""
    return Version(
        name=name,
        number=versions[-1].number + 1 if versions else 1,
        root=manifest.root,
        seal=manifest.seal,
        kind=stored.kind,
        parent=stored.parent.number if stored.parent else None,
        stored_bytes=stored.stored_bytes,
        full_bytes=weight(stored.folder) if stored.kind == FULL else versions[0].full_bytes,
        program=None,
        model_id="",
        location="",
        publish_seconds=0.0,
        tags={},
    )


def _read_back(
    server: Server,
    model_id: str,
    location: str,
    stored: _Stored,
    manifest: ckpt.Manifest,
    workspace: Path,
    *,
    name: str,
) -> None:
    """Download what went up and prove it, by the same road that a fetch takes."""
    folder = server.download(location, stored.part, workspace / "read-back")
    try:
        if stored.kind == FULL:
            ckpt.verify(folder, root=manifest.root).raise_on_fault()
        elif ckpt.read_delta(folder).target_seal != manifest.seal or _files(folder) != _files(stored.folder):
            raise PublishError(name, model_id, "other bytes than were sent")
    except ckpt.CheckpointError as error:
        raise PublishError(name, model_id, str(error)) from error


def _files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def _description(facts: Mapping[str, str]) -> str:
    kind, ratio = facts[f"{PREFIX}kind"], facts[f"{PREFIX}ratio"]
    stored = int(facts[f"{PREFIX}stored_bytes"])
    parent = facts.get(f"{PREFIX}parent")
    origin = f" on version {parent}, {ratio}× smaller than a full copy" if parent else ""
    return f"{kind}{origin}: {stored:,} bytes stored. Root `{facts[f'{PREFIX}root']}`."
