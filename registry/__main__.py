"""The command line of the registry: ``python -m registry --help``.

Speaks to ``MLFLOW_TRACKING_URI`` and keeps ledgers and cache in ``TREERING_HOME``. Prints for people, or with
``--json`` one object for machines; exits with 0, 1 on an error, 2 on a call that makes no sense. Text is 80
columns wide, or as wide as a wider terminal; it shortens roots, and what is shortened may be typed back.
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import ckpt
import registry
from ckpt.command_line import Parser, parsed, run_command
from registry.fetching import live_number
from registry.ledger import ROLLBACK, Entry

Result = tuple[Any, str]  # the object, the text
_WIDTH = 80  # columns
_ROOT_WIDTH = 19  # characters of a root that are shown: sha256: and 12 digits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see the module's head."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parsed(_parser(), arguments)
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


def _parser() -> Parser:
    parser = Parser(prog="python -m registry", description="Versions of models, and who moved them.")
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
    promote.add_argument("--expect", type=int, help="the version that it replaces; left out: none is live")
    rollback = _command(commands, "rollback", _rollback, "go back from a suspect root, if it is live")
    rollback.add_argument("name", help="a registered model")
    rollback.add_argument("suspect", help="what is under suspicion: a version's number, or the beginning of a root")
    clear = _command(commands, "clear", _clear, "allow a quarantined root again")
    clear.add_argument("name", help="a registered model")
    clear.add_argument("root", help="a version's number, or the beginning of a root")
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
    server = registry.Server.from_environment()
    held = registry.quarantined_roots(options.name, server=server)
    champion = live_number(options.name, "champion", server=server)
    facts, rows = [], [f"version  {'kind':5}  {'state':11}  {'stored bytes':>14}  {'full bytes':>14}  root"]
    for version in server.versions(options.name):
        is_live, reason = version.number == champion, held.get(version.root)
        facts.append({**asdict(version), "live": is_live, "quarantined": reason})
        state = "quarantined" if reason is not None else "live" if is_live else ""
        rows.append(
            f"{version.number:>7}  {version.kind:5}  {state:11}  {version.stored_bytes:>14,}  "
            f"{version.full_bytes:>14,}  {version.root[:_ROOT_WIDTH]}"
        )
    return facts, "\n".join(rows) if facts else f"'{options.name}' has no versions"


def _history(options: argparse.Namespace) -> Result:
    entries = registry.history(options.name)
    return [asdict(entry) for entry in entries], "\n".join(map(shown, entries)) or "no decision yet"


def shown(entry: Entry) -> str:
    """One decision, as wide as the terminal; a reason that is longer goes on below."""
    at = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    before, after = (f"v{target.version}" if target else "–" for target in (entry.before, entry.after))
    move = after if before == after else f"{before} → {after}"
    marked = f" {entry.quarantined[:_ROOT_WIDTH]}" if entry.quarantined and entry.action != ROLLBACK else ""
    line = f"{at}  {entry.alias}  {entry.action:10} {move:10} by {entry.actor}:{marked} {entry.reason}"
    width = max(_WIDTH, shutil.get_terminal_size().columns)
    return textwrap.fill(line, width, subsequent_indent="    ")


def _fetch(options: argparse.Namespace) -> Result:
    folder = registry.fetch(options.reference)
    return {"folder": str(folder), "root": ckpt.read_manifest(folder).root}, str(folder)


def _promote(options: argparse.Namespace) -> Result:
    entry = registry.promote(options.name, options.version, expect=options.expect, reason=options.reason)
    return asdict(entry), shown(entry)


def _rollback(options: argparse.Namespace) -> Result:
    suspect = registry.known_root(options.name, options.suspect)
    entry = registry.rollback(options.name, suspect=suspect, reason=options.reason, show=False)
    try:
        registry.sync(options.name)
    except registry.RegistryError as error:
        raise registry.RegistryError(f"{shown(entry)}\nThe ledger took this, MLflow shows it later: {error}") from error
    live = entry.after
    if entry.action == ROLLBACK or live is None:
        return asdict(entry), shown(entry)
    if live.root == suspect:
        raise registry.LedgerError(
            f"'{options.name}' was not rolled back: v{live.version} is live, and no other version that is not "
            f"quarantined was live before it. Move on instead: 'python -m registry promote {options.name} VERSION "
            f"--expect {live.version} --reason …'."
        )
    return asdict(entry), f"{shown(entry)}\nnothing was moved: {suspect[:_ROOT_WIDTH]} is not live, v{live.version} is"


def _clear(options: argparse.Namespace) -> Result:
    root = registry.known_root(options.name, options.root)
    entry = registry.clear(options.name, root, reason=options.reason)
    return asdict(entry), shown(entry)


if __name__ == "__main__":
    sys.exit(main())
