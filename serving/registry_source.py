"""The registry as a fleet's source: aliases from the ledger, checkpoints by the cheapest deltas.

Quarantined roots are refused as every source must; what the registry or MLflow cannot give is a SourceError, so the
fleet stays with what it serves.
"""

from pathlib import Path

import ckpt
import registry
from serving.errors import QuarantinedError, SourceError
from serving.source import Desired


class RegistrySource:
    """Resolves and fetches through :mod:`registry`, with one server and one cache."""

    def __init__(self, server: registry.Server) -> None:
        self._server = server

    def resolve(self, name: str, alias: str) -> Desired:
        """See :class:`serving.source.Source`."""
        reference = f"{name}@{alias}"
        try:
            version = registry.resolve(reference, server=self._server)
            held = registry.quarantined_roots(name, server=self._server)
        except registry.RegistryError as error:
            raise SourceError(f"alias '{reference}'", found=str(error), expected="a published version") from error
        if version.root in held:
            raise QuarantinedError(
                f"alias '{reference}'",
                found=f"version {version.number} with the quarantined root {version.root}: {held[version.root]}",
                expected="a root that was not rolled back",
                next_step="Move the alias, or clear the root with 'python -m registry clear'.",
            )
        return Desired(name=name, version=str(version.number), root=version.root)

    def fetch(self, desired: Desired) -> Path:
        """See :class:`serving.source.Source`."""
        reference = f"{desired.name}/{desired.version}"
        try:
            return registry.fetch(reference, server=self._server)
        except (registry.RegistryError, ckpt.CheckpointError, OSError) as error:
            raise SourceError(f"version '{reference}'", found=str(error), expected="a verified checkpoint") from error
