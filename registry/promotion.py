"""Move aliases: through the ledger, then in MLflow, which shows what the ledger says.

When the server is away after the ledger took a move, the call says so, the move stands, and the next call or
:func:`sync` shows it; readers on this machine resolve aliases from the ledger.
"""

import getpass
import time

from registry.fetching import ledger_of, resolve
from registry.ledger import Author, Entry, Target, before_suspect, live, quarantined, roots_of
from registry.mention import root_meant
from registry.server import Server
from registry.versions import PREFIX

CHAMPION, PREVIOUS = "champion", "previous"
_QUARANTINED = f"{PREFIX}quarantined"
_TAG_CHARACTERS = 200


def promote(
    name: str,
    version: int,
    *,
    expect: int | None,
    reason: str,
    alias: str = CHAMPION,
    actor: str | None = None,
    flow_run: str | None = None,
    server: Server | None = None,
) -> Entry:
    """Make a version the one that is served under an alias, if what is live is what the caller believes.

    Args:
        name: The registered model.
        version: The number to promote.
        expect: The number believed live, None for nothing.
        reason: Why; stands in the ledger.
        alias: The alias to move.
        actor: Who; by default the user of this process.
        flow_run: The flow run that decided.
        server: Where; by default what the environment says.

    Raises:
        StaleExpectationError: another version is live.
        QuarantinedError: the version's root was rolled back and not cleared.
        UnknownVersionError: no such version.
    """
    server = server or Server.from_environment()
    target = _target(name, version, server)
    believed = _target(name, expect, server) if expect is not None else None
    entry = ledger_of(name, server).promote(
        target, alias=alias, expect=believed, author=_author(actor, reason, flow_run)
    )
    sync(name, alias=alias, server=server)
    return entry


def rollback(
    name: str,
    *,
    suspect: str,
    reason: str,
    alias: str = CHAMPION,
    generation: int | None = None,
    actor: str | None = None,
    flow_run: str | None = None,
    show: bool = True,
    server: Server | None = None,
) -> Entry:
    """Go back to the version before the suspect and quarantine the suspect; a recorded no-op when it is not live.

    Args:
        name: The registered model.
        suspect: The root under suspicion.
        reason: What was seen.
        generation: Of the alias when it was seen, when the caller knows it.
        show: Show it in MLflow at once; False leaves that to a later :func:`sync`, and needs no server.

    Returns:
        The entry: ``action`` is ``rollback`` or ``nothing``.

    Raises:
        UnknownRootError: the suspect was never live; nothing is written.
    """
    server = server or Server.from_environment()
    entry = ledger_of(name, server).rollback(
        alias=alias, suspect=suspect, author=_author(actor, reason, flow_run), generation=generation
    )
    if show:
        sync(name, alias=alias, server=server)
    return entry


def clear(
    name: str, root: str, *, reason: str, alias: str = CHAMPION, actor: str | None = None, server: Server | None = None
) -> Entry:
    """Allow a quarantined root again.

    Raises:
        NotQuarantinedError: it is not under quarantine; nothing is written.
    """
    server = server or Server.from_environment()
    entry = ledger_of(name, server).clear(root, alias=alias, author=_author(actor, reason, None))
    sync(name, alias=alias, server=server)
    return entry


def history(name: str, *, server: Server | None = None) -> tuple[Entry, ...]:
    """Every decision about a model, oldest first."""
    return ledger_of(name, server or Server.from_environment()).entries()


def quarantined_roots(name: str, *, server: Server | None = None) -> dict[str, str]:
    """Roots of a model that are not to be served → why."""
    return quarantined(history(name, server=server))


def known_root(name: str, mention: str, *, server: Server | None = None) -> str:
    """The root that a version's number (``3``) or a root's first digits mean, from this machine's ledger alone.

    Raises:
        UnknownRootError: no root that was ever live or quarantined, or more than one.
    """
    return root_meant(mention, roots_of(history(name, server=server)), model=name)


def sync(name: str, *, alias: str = CHAMPION, server: Server | None = None) -> None:
    """Show in MLflow what the ledger says: the alias, ``previous``, and quarantine tags.

    ``previous`` is the version that a rollback from ``champion`` would go back to, so never one under quarantine; where
    there is none the alias is taken away.
    """
    server = server or Server.from_environment()
    entries = history(name, server=server)
    now = live(entries, alias)
    if now is not None and server.alias(name, alias) != now.version:
        server.set_alias(name, alias, now.version)
    if alias == CHAMPION and now is not None:
        back = before_suspect(entries, alias, now.root)
        _show_previous(name, back.version if back is not None else None, server)
    held = {root: reason[:_TAG_CHARACTERS] for root, reason in quarantined(entries).items()}
    for version in server.versions(name) if entries else ():
        if version.tags.get(_QUARANTINED) != held.get(version.root):
            server.tag_version(name, version.number, _QUARANTINED, held.get(version.root))


def _show_previous(name: str, number: int | None, server: Server) -> None:
    if server.alias(name, PREVIOUS) == number:
        return
    if number is None:
        server.drop_alias(name, PREVIOUS)
    else:
        server.set_alias(name, PREVIOUS, number)


def _target(name: str, number: int, server: Server) -> Target:
    version = resolve(f"{name}/{number}", server=server)
    return Target(version=version.number, root=version.root)


def _author(actor: str | None, reason: str, flow_run: str | None) -> Author:
    return Author(actor=actor or getpass.getuser(), reason=reason, at=time.time(), flow_run=flow_run)
