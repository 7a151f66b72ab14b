"""Where a fleet learns what to serve, and gets it from.

A *source* resolves an alias to a version and its root, and fetches the full checkpoint as a local folder, with the seal
that the folder must have. The registry is one; ``FolderSource`` is another, a plain folder that needs no server::

    models/mnist/1/ …              checkpoint folders, by version
    models/mnist/aliases.json      {"champion": "1"}
    models/mnist/quarantine.json   ["sha256:…"]

Promises of every source: ``resolve`` never names a quarantined root, it raises QuarantinedError; what cannot be
resolved or fetched is a SourceError. Calls may block: a fleet makes them in a thread. Bytes are verified by whoever
serves them, whatever the source says; a folder that changes later does not change the seal.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

import ckpt
from serving.errors import QuarantinedError, SourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What an alias names."""

    name: str
    version: str
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A version that workers should serve, its folder, and the seal that the folder must have."""

    desired: Desired
    folder: Path
    seal: str


class Source(Protocol):
    """Resolves aliases and fetches versions."""

    def resolve(self, name: str, alias: str) -> Desired:
        """Return the version that the alias names now.

        Raises:
            QuarantinedError: Its root was rolled back and not cleared.
            SourceError: Nothing to resolve, or the source cannot be reached.
        """
        ...

    def fetch(self, desired: Desired) -> Target:
        """Return the full checkpoint's folder, which stays until the fleet ends, and the seal of the version.

        Raises:
            SourceError: The version is not there, or cannot be fetched.
        """
        ...


class FolderSource:
    """Versions in a local folder, as the head of this module draws it.

    Nobody but the folder vouches for a seal, so the one that was there at the first fetch counts from then on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seals: dict[Desired, str] = {}

    def resolve(self, name: str, alias: str) -> Desired:
        """Read the alias and the root of the version that it names."""
        aliases = self._read(name, "aliases.json", default={})
        if alias not in aliases:
            raise SourceError(
                f"alias '{name}@{alias}'",
                found=f"aliases {sorted(aliases)} in '{self._folder / name}'",
                expected="this alias among them",
                next_step=f"Set it in '{self._folder / name / 'aliases.json'}'.",
            )
        version = str(aliases[alias])
        root = self._manifest(name, version).root
        if root in self._read(name, "quarantine.json", default=[]):
            raise QuarantinedError(
                f"alias '{name}@{alias}'",
                found=f"version {version} with the quarantined root {root}",
                expected="a root that was not rolled back",
                next_step="Move the alias, or clear the root from quarantine.json.",
            )
        return Desired(name=name, version=version, root=root)

    def fetch(self, desired: Desired) -> Target:
        """Return the version's own folder, and the seal that it had when it was fetched first."""
        if desired not in self._seals:
            self._seals[desired] = self._manifest(desired.name, desired.version).seal
        folder = self._folder / desired.name / desired.version
        return Target(desired=desired, folder=folder, seal=self._seals[desired])

    def point(self, name: str, *, alias: str, version: str) -> None:
        """Make the alias name a version."""
        self._write(name, "aliases.json", {**self._read(name, "aliases.json", default={}), alias: version})

    def quarantine(self, name: str, *, root: str) -> None:
        """Refuse a root from now on."""
        roots = self._read(name, "quarantine.json", default=[])
        self._write(name, "quarantine.json", sorted({*roots, root}))

    def _manifest(self, name: str, version: str) -> ckpt.Manifest:
        folder = self._folder / name / version
        try:
            return ckpt.read_manifest(folder)
        except (ckpt.CheckpointError, OSError) as error:
            raise SourceError(
                f"version {version} of '{name}'", found=str(error), expected=f"a checkpoint in '{folder}'"
            ) from error

    def _read(self, name: str, file: str, *, default: Any) -> Any:
        path = self._folder / name / file
        try:
            return orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return default
        except (OSError, orjson.JSONDecodeError) as error:
            raise SourceError(f"'{path}'", found=str(error), expected="a JSON document") from error

    def _write(self, name: str, file: str, document: Any) -> None:
        replace_file(self._folder / name / file, orjson.dumps(document))


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old content or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)
