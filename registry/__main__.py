"""The command line of the registry: ``python -m registry --help``.

Speaks to ``MLFLOW_TRACKING_URI`` and keeps ledgers and cache in ``TREERING_HOME``. Prints for people, or with
``--json`` one object for machines; exits with 0, 1 on an error, 2 on a call that makes no sense.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import ckpt
import registry
from registry.ledger import Entry

Result = tuple[Any, str]  # the object, the text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see the module's head."""
    options = _parser().parse_args(arguments)
    try:
        facts, text = options.run(options)
    except (registry.RegistryError, ckpt.CheckpointError, OSError) as error:
        if options.json:
            print(json.dumps({"ok": False, "error": type(error).__name__, "message": str(error)}))
        else:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(facts) if options.json else text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m registry", description="Versions of models, and who moved them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    versions = _command(commands, "versions", _versions, "list the versions of a model")
    versions.add_argument("name", help="a registered model")
    history = _command(commands, "history", _history, "who moved what, when and why, oldest first")
    history.add_argument("name", help="a registered model")
    fetch = _command(commands, "fetch", _fetch, "bring a version into this machine's cache; print its folder")
    fetch.add_argument("reference", help="mnist@champion or mnist/3")
    promote = _command(commands, "promote", _promote, "make a version the one that is served")
    promote.add_argument("name", help="a registered model")
    promote.add_argument("version", type=int, help="the version to promote")
    promote.add_argument("--expect", type=int, help="the version believed live; left out: none")
    rollback = _command(commands, "rollback", _rollback, "go back from a suspect root, if it is live")
    rollback.add_argument("name", help="a registered model")
    rollback.add_argument("suspect", help="the root under suspicion, sha256:…")
    clear = _command(commands, "clear", _clear, "allow a quarantined root again")
    clear.add_argument("name", help="a registered model")
    clear.add_argument("root", help="the root, sha256:…")
    for command in (promote, rollback, clear):
        command.add_argument("--reason", required=True, help="why; stands in the ledger")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Result], description: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=description, description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def _versions(options: argparse.Namespace) -> Result:
    versions = registry.Server.from_environment().versions(options.name)
    rows = [
        f"{version.number:>4}  {version.kind:5}  {version.stored_bytes:>12,} of {version.full_bytes:>12,} bytes  "
        f"{version.root}"
        for version in versions
    ]
    return [asdict(version) for version in versions], "\n".join(rows) or f"'{options.name}' has no versions"


def _history(options: argparse.Namespace) -> Result:
    entries = registry.history(options.name)
    return [asdict(entry) for entry in entries], "\n".join(map(shown, entries)) or "no decision yet"


def shown(entry: Entry) -> str:
    """One decision on one line."""
    at = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    move = f"v{entry.before.version if entry.before else '–'} → v{entry.after.version if entry.after else '–'}"
    return f"{at}  {entry.alias}  {entry.action:10} {move:10} by {entry.actor}: {entry.reason}"


def _fetch(options: argparse.Namespace) -> Result:
    folder = registry.fetch(options.reference)
    return {"folder": str(folder), "root": ckpt.read_manifest(folder).root}, str(folder)


def _promote(options: argparse.Namespace) -> Result:
    entry = registry.promote(options.name, options.version, expect=options.expect, reason=options.reason)
    return asdict(entry), shown(entry)


def _rollback(options: argparse.Namespace) -> Result:
    entry = registry.rollback(options.name, suspect=options.suspect, reason=options.reason)
    return asdict(entry), shown(entry)


def _clear(options: argparse.Namespace) -> Result:
    entry = registry.clear(options.name, options.root, reason=options.reason)
    return asdict(entry), shown(entry)


if __name__ == "__main__":
    sys.exit(main())
