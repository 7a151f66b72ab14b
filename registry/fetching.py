"""Fetch a version: the cheapest way from what this machine holds, verified at each step.

A full checkpoint is downloaded and proved by SHA-256; a delta is downloaded, its frames are proved before they are
decoded, and its result before it appears. What is in the cache is checked by CRC-32 before it is built upon.
"""

from collections.abc import Sequence
from pathlib import Path

import ckpt
from registry.cache import Cache
from registry.errors import RegistryError, UnknownVersionError
from registry.ledger import Ledger, live
from registry.server import Server
from registry.versions import DELTA_PART, FULL_PART, Version, parse_reference, path_to, valid_name


def resolve(reference: str, *, server: Server | None = None) -> Version:
    """The version that ``mnist@champion`` or ``mnist/3`` names now.

    An alias is looked up in this machine's ledger, and in MLflow where the ledger has no word of it.

    Raises:
        UnknownVersionError: there is none.
    """
    server = server or Server.from_environment()
    wanted = parse_reference(reference)
    number = wanted.number
    if number is None:
        assert wanted.alias is not None, "a reference names one of them"
        number = live_number(wanted.name, wanted.alias, server=server)
        if number is None:
            raise UnknownVersionError(reference, f"no alias '{wanted.alias}' of a model '{wanted.name}'")
    versions = server.versions(wanted.name)
    for version in versions:
        if version.number == number:
            return version
    numbers = ", ".join(str(version.number) for version in versions) or "none"
    raise UnknownVersionError(reference, server.left_out(wanted.name, number) or f"versions {numbers}")


def live_number(name: str, alias: str, *, server: Server) -> int | None:
    """The version under an alias: in this machine's ledger, or in MLflow where the ledger has no word of it."""
    target = live(ledger_of(name, server).entries(), alias)
    return target.version if target is not None else server.alias(name, alias)


def ledger_of(name: str, server: Server) -> Ledger:
    """The ledger of a model on this machine."""
    return Ledger(server.home / "ledger" / f"{valid_name(name)}.jsonl", model=name)


def fetch(reference: str, *, cache: Path | str | None = None, server: Server | None = None) -> Path:
    """A verified checkpoint folder of a version, downloaded as cheaply as the cache allows.

    Args:
        reference: ``mnist@champion``, ``mnist/3``.
        cache: A cache folder; by default this machine's own.
        server: Where from; by default what the environment says.

    Returns:
        A folder that is not to be written to; it stays in the cache.

    Raises:
        UnknownVersionError, IntegrityError, DeltaError: nothing appears in the cache then.
    """
    server = server or Server.from_environment()
    version = resolve(reference, server=server)
    place = Cache(Path(cache)) if cache is not None else Cache(server.home / "cache")
    return fetch_version(version, server.versions(version.name), cache=place, server=server)


def fetch_version(version: Version, versions: Sequence[Version], *, cache: Cache, server: Server) -> Path:
    """As :func:`fetch`, for a version that is known."""
    by_number = {known.number: known for known in versions}
    absent: frozenset[str] = frozenset()
    while True:
        try:
            steps = path_to(version, by_number, cache.held() - absent)
        except KeyError as missing:
            raise UnknownVersionError(version.reference, f"no version {missing} that its delta is made from") from None
        start = version if not steps else by_number.get(steps[0].parent or 0)
        if start is None or _is_sound(cache, start.seal):
            break
        absent |= {start.seal}  # it was damaged, and is removed now
    for step in steps:
        _bring(step, by_number, cache=cache, server=server)
    return cache.path(version.seal)


def _is_sound(cache: Cache, seal: str) -> bool:
    with cache.locked(seal):
        return cache.is_sound(seal)


def _bring(step: Version, versions: dict[int, Version], *, cache: Cache, server: Server) -> None:
    """Download one step and put its checkpoint into the cache, unless another process was first."""
    with cache.locked(step.seal), cache.workspace() as workspace:
        if cache.path(step.seal).is_dir():
            return
        if step.parent is None:
            made = server.download(step.location, FULL_PART, workspace)
            ckpt.verify(made, root=step.root).raise_on_fault()
        else:
            delta = server.download(step.location, DELTA_PART, workspace)
            made = workspace / "made"
            ckpt.apply(cache.path(versions[step.parent].seal), delta, made)
        seal = ckpt.read_manifest(made).seal
        if seal != step.seal:
            raise RegistryError(
                f"{step.reference} holds seal {seal}, its tag in MLflow says {step.seal}; someone altered one of "
                "them. Publish the checkpoint again."
            )
        cache.adopt(made, seal)
