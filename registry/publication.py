"""Publish a checkpoint: two phases, read back before anyone can see it.

A logged model stays PENDING while its artifacts go up; they are downloaded again, a delta is applied, and the result
must have the seal of what was to be published. Then the model becomes READY, then a version appears, then (by
promotion) an alias. A crash anywhere leaves a visible PENDING and never half a version. What is stored is a delta on
an earlier version where that is smaller.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ckpt
from registry.cache import Cache
from registry.errors import ForeignFileError, PublishError
from registry.fetching import fetch_version
from registry.pages import chain, write_pages
from registry.server import Server
from registry.versions import (
    DELTA,
    DELTA_PART,
    FULL,
    FULL_PART,
    PREFIX,
    Version,
    parent_of,
    patch_bytes,
    valid_name,
)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What goes up, under ``part`` of the artifacts; a delta with the version and folder that it is made from."""

    kind: str
    part: str
    folder: Path
    parent: Version | None
    base: Path | None
    stored_bytes: int
    full_bytes: int


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
        metrics: Logged to the run ``run_id``; a version without a run shows none.
        tags: More tags for the version, under the prefix ``treering.``: git commit, flow run, program digest.
        pages: More files for people, name → text (a compile report, say).
        run_id: The MLflow run it comes from.
        server: Where; by default what the environment says.

    Returns:
        The version, visible to everyone, without an alias yet.

    Raises:
        IntegrityError: the checkpoint itself is not sound.
        ForeignFileError: its folder holds a file that is no part of it.
        PublishError: what was uploaded did not read back.
        RegistryUnavailableError: the server does not answer.
    """
    started = time.monotonic()
    server = server or Server.from_environment()
    source = Path(checkpoint)
    valid_name(name)
    manifest = _sound(source)
    cache = Cache(server.home / "cache")
    with cache.workspace() as workspace:
        stored = _choose(source, manifest, workspace, server=server, cache=cache, name=name)
        facts = _facts(manifest, stored, extra=tags or {})
        model = server.create_model(name, name=name, run_id=run_id, tags=facts)
        _write_pages(workspace / "pages", manifest, stored, versions=server.versions(name), name=name, more=pages or {})
        server.upload(model.model_id, workspace / "pages")
        server.upload(model.model_id, stored.folder, part=stored.part)
        proved = _read_back(server, model.model_id, model.artifact_location, stored, manifest, workspace, name=name)
        server.finalize(model.model_id, ready=True)
        if run_id is not None and metrics:
            server.log(run_id, metrics=metrics)
        facts |= {
            f"{PREFIX}model_id": model.model_id,
            f"{PREFIX}location": model.artifact_location,
            f"{PREFIX}publish_seconds": f"{time.monotonic() - started:.3f}",
        }
        pages_at = f"#/experiments/{model.experiment_id}/models/{model.model_id}/artifacts"
        number = server.create_version(
            name, model_id=model.model_id, run_id=run_id, tags=facts, description=_description(facts, pages_at)
        )
        with cache.locked(manifest.seal):
            cache.adopt(proved, manifest.seal)
    return next(version for version in server.versions(name) if version.number == number)


def _sound(source: Path) -> ckpt.Manifest:
    """The manifest of a checkpoint that holds its bytes and nothing else."""
    report = ckpt.verify(source)
    report.raise_on_fault()
    if report.foreign:
        raise ForeignFileError(source, report.foreign[0])
    return ckpt.read_manifest(source)


def weight(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _choose(
    source: Path, manifest: ckpt.Manifest, workspace: Path, *, server: Server, cache: Cache, name: str
) -> _Stored:
    """A delta where all patches from a full copy on weigh less than a full copy; else a full one."""
    full_bytes = weight(source)
    full = _Stored(FULL, FULL_PART, source, parent=None, base=None, stored_bytes=full_bytes, full_bytes=full_bytes)
    versions = server.versions(name)
    parent = parent_of(versions)
    if parent is None:
        return full
    base = fetch_version(parent, versions, cache=cache, server=server)
    delta = ckpt.diff(base, source, workspace / "diff")
    if patch_bytes(parent, {version.number: version for version in versions}) + delta.size_bytes >= full_bytes:
        return full
    return _Stored(DELTA, DELTA_PART, workspace / "diff", parent, base, delta.size_bytes, full_bytes)


def _facts(manifest: ckpt.Manifest, stored: _Stored, *, extra: Mapping[str, str]) -> dict[str, str]:
    facts = {
        **extra,
        "root": manifest.root,
        "seal": manifest.seal,
        "kind": stored.kind,
        "parent": str(stored.parent.number) if stored.parent else "",
        "parent_root": stored.parent.root if stored.parent else "",
        "stored_bytes": str(stored.stored_bytes),
        "full_bytes": str(stored.full_bytes),
        "ratio": f"{stored.full_bytes / stored.stored_bytes:.1f}",
    }
    return {PREFIX + key: value for key, value in facts.items() if value}


def _write_pages(
    folder: Path,
    manifest: ckpt.Manifest,
    stored: _Stored,
    *,
    versions: Sequence[Version],
    name: str,
    more: Mapping[str, str],
) -> None:
    folder.mkdir()
    write_pages(
        folder,
        manifest,
        name=name,
        kind=stored.kind,
        stored_bytes=stored.stored_bytes,
        full_bytes=stored.full_bytes,
    )
    (folder / "chain.html").write_text(chain([*versions, _announced(name, versions, stored, manifest)]), "utf-8")
    for page, text in more.items():
        (folder / page).write_text(text, "utf-8")


def _announced(name: str, versions: Sequence[Version], stored: _Stored, manifest: ckpt.Manifest) -> Version:
    """The version that is about to be, for the picture; its number is a guess: others may publish meanwhile."""
    return Version(
        name=name,
        number=versions[-1].number + 1 if versions else 1,
        root=manifest.root,
        seal=manifest.seal,
        kind=stored.kind,
        parent=stored.parent.number if stored.parent else None,
        stored_bytes=stored.stored_bytes,
        full_bytes=stored.full_bytes,
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
) -> Path:
    """Download what went up and prove it by the road that a fetch takes; the checkpoint that came out."""
    folder = server.download(location, stored.part, workspace / "read-back")
    try:
        if stored.base is not None:
            ckpt.apply(stored.base, folder, workspace / "proved")
            folder = workspace / "proved"
        report = ckpt.verify(folder, root=manifest.root)
        report.raise_on_fault()
    except ckpt.CheckpointError as error:
        raise PublishError(name, model_id, str(error)) from error
    seal = ckpt.read_manifest(folder).seal
    if seal != manifest.seal or report.foreign:
        raise PublishError(name, model_id, f"seal {seal} and foreign files {report.foreign}")
    return folder


def _description(facts: Mapping[str, str], pages_at: str) -> str:
    kind, ratio = facts[f"{PREFIX}kind"], facts[f"{PREFIX}ratio"]
    stored = int(facts[f"{PREFIX}stored_bytes"])
    parent = facts.get(f"{PREFIX}parent")
    origin = f" on version {parent}, {ratio}× smaller than a full copy" if parent else ""
    pages = f"[Its pages]({pages_at}): how its bytes are checked, the chain of deltas drawn, the compile report."
    return f"{kind}{origin}: {stored:,} bytes stored. Root `{facts[f'{PREFIX}root']}`.\n\n{pages}"
