"""The registry as a fleet's source: aliases from the ledger, checkpoints by the cheapest deltas.

Quarantined roots are refused as every source must; what the registry or MLflow cannot give is a SourceError, so the
fleet stays with what it serves. A fleet goes back to a version that it has fetched before while MLflow is away.
"""

import ckpt
import registry
from serving.errors import QuarantinedError, SourceError
from serving.source import Desired, Target


class RegistrySource:
    """Resolves and fetches through :mod:`registry`, with one server and one cache."""

    def __init__(self, server: registry.Server) -> None:
        self._server = server

    def resolve(self, name: str, alias: str) -> Desired:
        """See :class:`serving.source.Source`."""
        reference = f"{name}@{alias}"
        try:
            desired = self._desired(name, alias)
            held = registry.quarantined_roots(name, server=self._server)
        except registry.RegistryError as error:
            raise SourceError(f"alias '{reference}'", found=str(error), expected="a published version") from error
        if desired.root in held:
            raise QuarantinedError(
                f"alias '{reference}'",
                found=f"version {desired.version} with the quarantined root {desired.root}: {held[desired.root]}",
                expected="a root that was not rolled back",
                next_step="Move the alias, or clear the root with 'python -m registry clear'.",
            )
        return desired

    def _desired(self, name: str, alias: str) -> Desired:
        """What the ledger of this machine says, which needs no server; else what MLflow says."""
        target = registry.live(registry.history(name, server=self._server), alias)
        if target is not None:
            return Desired(name=name, version=str(target.version), root=target.root)
        version = registry.resolve(f"{name}@{alias}", server=self._server)
        return Desired(name=name, version=str(version.number), root=version.root)

    def fetch(self, desired: Desired) -> Target:
        """See :class:`serving.source.Source`; the seal is what the version's tag in MLflow says."""
        reference = f"{desired.name}/{desired.version}"
        try:
            seal = registry.resolve(reference, server=self._server).seal
            return Target(desired=desired, folder=registry.fetch(reference, server=self._server), seal=seal)
        except (registry.RegistryError, ckpt.CheckpointError, OSError) as error:
            raise SourceError(f"version '{reference}'", found=str(error), expected="a verified checkpoint") from error
