"""Versions as values, references to them, and the rule that chooses what a delta is made from.

A version stores a full checkpoint or a delta on an earlier one. Parents are chosen as in a skip list: of the n-th
version since the last full one the lowest set bit of n is cleared, so that any version is reached from a full one by
at most log₂(n) patches; a full one is stored where the patches would weigh more.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry.errors import InvalidNameError

FULL, DELTA = "full", "delta"
FULL_PART, DELTA_PART = "checkpoint", "delta"  # the folders among a version's artifacts
PREFIX = "treering."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published version; sizes in bytes.

    Attributes:
        name, number: As in MLflow.
        root, seal: Of its checkpoint.
        kind: ``"full"`` or ``"delta"``: what its artifacts hold.
        parent: The version its delta applies to; None for a full one.
        stored_bytes: What a fetch downloads.
        full_bytes: What a full copy weighs, attachments included.
        program: Digest of the compiled program, or None.
        model_id, location: MLflow's logged model and where its artifacts lie.
        publish_seconds: From the call to the version's being visible.
        tags: Everything on the version in MLflow.
    """

    name: str
    number: int
    root: str
    seal: str
    kind: str
    parent: int | None
    stored_bytes: int
    full_bytes: int
    program: str | None
    model_id: str
    location: str
    publish_seconds: float
    tags: Mapping[str, str]

    @property
    def reference(self) -> str:
        """``name/number``."""
        return f"{self.name}/{self.number}"

    @property
    def ratio(self) -> float:
        """How many times smaller what is stored is than a full copy."""
        return self.full_bytes / self.stored_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What ``name@alias`` or ``name/number`` says; a bare name means its champion."""

    name: str
    alias: str | None = None
    number: int | None = None


def parse_reference(text: str) -> Reference:
    """Read ``mnist@champion``, ``mnist/3``, ``mnist``, each with or without ``models:/``.

    Raises:
        InvalidNameError: it is none of these.
    """
    plain = text.removeprefix("models:/")
    name, at, alias = plain.partition("@")
    if at and _NAME.fullmatch(alias):
        return Reference(name=valid_name(name), alias=alias)
    name, slash, number = plain.partition("/")
    if slash and number.isdecimal():
        return Reference(name=valid_name(name), number=int(number))
    if at or slash:
        raise InvalidNameError(text)
    return Reference(name=valid_name(plain), alias="champion")


def valid_name(name: str) -> str:
    """The name itself.

    Raises:
        InvalidNameError: it cannot stand in the registry.
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(name)
    return name


def version_from_tags(name: str, number: int, tags: Mapping[str, str]) -> Version:
    """A version from what its tags in MLflow say.

    Raises:
        KeyError: a tag is missing.
        ValueError: one makes no sense.
    """
    fields = {key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)}
    kind, parent = fields["kind"], int(fields["parent"]) if "parent" in fields else None
    if (kind, parent is None) not in ((FULL, True), (DELTA, False)) or not (parent or 0) < number:
        raise ValueError(f"kind '{kind}' with parent {parent}")
    for key in ("root", "seal"):
        if not _DIGEST.fullmatch(fields[key]):
            raise ValueError(f"{key} '{fields[key]}'")
    return Version(
        name=name,
        number=number,
        root=fields["root"],
        seal=fields["seal"],
        kind=kind,
        parent=parent,
        stored_bytes=int(fields["stored_bytes"]),
        full_bytes=int(fields["full_bytes"]),
        program=fields.get("program"),
        model_id=fields["model_id"],
        location=fields["location"],
        publish_seconds=float(fields["publish_seconds"]),
        tags=dict(tags),
    )


def parent_of(versions: Sequence[Version]) -> Version | None:
    """The version that the next one's delta is made from; None when there is none to start from.

    Args:
        versions: Those there are, in order of number. One whose chain is broken (a version on it was deleted) is as
            if it were not there.
    """
    by_number = {version.number: version for version in versions}
    whole = [version for version in versions if _is_whole(version, by_number)]
    fulls = [index for index, version in enumerate(whole) if version.kind == FULL]
    if not fulls:
        return None
    since = whole[fulls[-1] :]
    return since[len(since) & (len(since) - 1)]


def _is_whole(version: Version, versions: Mapping[int, Version]) -> bool:
    try:
        path_to(version, versions, frozenset())
    except KeyError:
        return False
    return True


def path_to(version: Version, versions: Mapping[int, Version], held: frozenset[str]) -> list[Version]:
    """What to fetch, in order, to have ``version`` from what is held.

    Args:
        version: The one that is wanted.
        versions: All of its model by number.
        held: Seals of the checkpoints that the cache holds.

    Returns:
        Versions to download and apply, oldest first; empty when it is held.

    Raises:
        KeyError: a parent is not there.
    """
    steps: list[Version] = []
    at = version
    while at.seal not in held:
        steps.append(at)
        if at.parent is None:
            break
        at = versions[at.parent]
    return steps[::-1]


def patch_bytes(version: Version, versions: Mapping[int, Version]) -> int:
    """What the patches between a version and the full one that it comes from weigh."""
    return sum(step.stored_bytes for step in path_to(version, versions, frozenset()) if step.kind == DELTA)
