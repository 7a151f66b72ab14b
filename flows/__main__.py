"""The command line of the local stack and the demo: ``python -m flows --help``."""

import argparse
import errno
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from command_line import run_command
from flows import settings, stack
from flows.errors import FlowError, StackError
from flows.stack import Say, foreign
from flows.standing import as_line, standing
from flows.starting import start
from flows.terminal import Terminal, command, say_error, timed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when all is well, 1 on an error, 2 on a call that makes no sense."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options, Terminal(sys.stdout).say))
    except FlowError as error:
        say_error(f"{type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        say_error("stopped")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows", description="The local stack, and the demo.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start the servers, register the deployments, start the Prefect worker")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="stop everything that 'up' and the flows started")
    down.set_defaults(run=_down)
    status = commands.add_parser("status", help="what runs, and where")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(run=_status)
    env = commands.add_parser("env", help='print the variables for a shell: eval "$(python -m flows env)"')
    env.set_defaults(run=_env)
    keep = commands.add_parser("keep", help="start again what ends, for ever; 'up' runs this in the background")
    keep.set_defaults(run=_keep)
    monitor = commands.add_parser("monitor", help="watch a model for ever; the pipeline starts this in the background")
    monitor.add_argument("model", help="the registered model")
    monitor.set_defaults(run=_monitor)
    token = commands.add_parser("token", help="the control token of fleets and workers")
    actions = token.add_subparsers(required=True, metavar="ACTION")
    rotate = actions.add_parser("rotate", help="replace it; whoever knows the old one is refused from now on")
    rotate.set_defaults(run=_rotate_token)
    guard = commands.add_parser("guard", help="which processes are guarded, and what was refused in them")
    guard.add_argument("--json", action="store_true", help="print one JSON object")
    guard.set_defaults(run=_guard)
    demo = commands.add_parser("demo", help="run the whole pipeline and show what it measured")
    demo.add_argument(
        "--recipe",
        action="append",
        metavar="MODULE",
        help="the recipe's module (default: recipes.mnist); give it again for pipelines side by side",
    )
    demo.add_argument(
        "--backend", choices=("aoti", "eager"), default="aoti", help="what compiles the model (default: %(default)s)"
    )
    demo.add_argument("--keep", action="store_true", help="leave the stack running")
    demo.add_argument("--json", metavar="FILE", help="write the summary there too; a list of them for several recipes")
    demo.set_defaults(run=_demo)
    for starting in (up, demo):
        starting.add_argument(
            "--ports", choices=("usual", "free"), default="usual", help="where servers listen (default: %(default)s)"
        )
    return parser


def _up(options: argparse.Namespace, say: Say) -> int:
    stack.guard.arm(str(settings.home()), "flows")
    home = settings.home()
    addresses = start(home, free_ports=options.ports == "free", say=say)
    stack.resume(home, addresses, say=say)
    name = stack.deployment(home, addresses)
    say("Run the pipeline:")
    say(f'  eval "$({command()} env)"')
    say(f"  prefect deployment run 'pipeline/{name}'")
    return 0


def _down(_: argparse.Namespace, say: Say) -> int:
    home = settings.home()
    if not stack.down(home, say=say):
        say(f"nothing runs in {home}")
    return 0


def _keep(_: argparse.Namespace, say: Say) -> int:
    addresses = stack.read(settings.home())
    if addresses is None:
        return _nothing_runs()
    return stack.keeper.keep(settings.home(), addresses, say=timed(say))


def _monitor(options: argparse.Namespace, say: Say) -> int:
    from flows.watch import watch_for_ever  # here, so that --help answers at once

    watch_for_ever(options.model, say=timed(say))
    return 0


def _status(options: argparse.Namespace, say: Say) -> int:
    home = settings.home()
    found: list[dict[str, Any]] = [
        {
            "name": record.name,
            "url": record.url,
            "pid": record.pid,
            "running": record.process() is not None,
            "serves": standing(record, home),
        }
        for record in stack.records(home)
    ]
    if options.json:
        print(json.dumps(found))
    else:
        for row in found:
            word = "running" if row["running"] else "ended"
            say(f"  {row['name']:<18} {word:<8} pid {row['pid']:<8} {row['url']}".rstrip())
        for row in found:
            if row["serves"]:
                say(f"  {as_line(row['serves'])}")
        if not found:
            say(f"nothing runs in {home}; start it with '{command()} up'")
    return 0 if found and all(row["running"] for row in found) else 1


def _env(_: argparse.Namespace, say: Say) -> int:
    addresses = stack.read(settings.home())
    if addresses is None:
        return _nothing_runs()
    yours = {foreign.KINDS[name].variable for name in addresses.foreign} & os.environ.keys()
    for name, value in stack.variables(settings.home(), addresses).items():
        if name in yours:
            continue  # set by the user, perhaps with more than the address
        print(f"export {name}={shlex.quote(value)}")
    print(f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH")
    print(f'export PYTHONPATH={shlex.quote(str(settings.REPOSITORY))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return 0


def _nothing_runs() -> int:
    say_error(f"nothing runs in {settings.home()}; start it with '{command()} up'")
    return 1


def _rotate_token(_: argparse.Namespace, say: Say) -> int:
    path = stack.fleet.rotate_token(settings.home())
    say(f"a new control token stands in {path}; the old one is refused from now on, and nothing needs a restart")
    return 0


def _guard(options: argparse.Namespace, say: Say) -> int:
    standings, findings = stack.guard.standings(settings.home()), stack.guard.findings(settings.home())
    if options.json:
        print(
            json.dumps({"processes": [asdict(row) for row in standings], "findings": [asdict(row) for row in findings]})
        )
    else:
        for row in standings:
            word = {True: "armed", False: "NOT ARMED", None: "–"}[row.armed]
            say(f"  {row.role:<18} pid {row.pid:<8} {word:<10} {row.command[:36]}")
        for finding in findings:
            say(f"  {finding}")
        say(f"{len(standings)} processes, {len(findings)} findings")
    return 1 if findings or any(row.armed is False for row in standings) else 0


def _make_room_for(file: Path) -> None:
    """Whether a file can be written is better known before a run of minutes."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "the folder cannot be written")
    except OSError as error:
        raise StackError(f"--json {file}: {error.strerror}; expected a place for a file. Choose another.") from error


def _demo(options: argparse.Namespace, say: Say) -> int:
    stack.guard.arm(str(settings.home()), "flows")
    if options.json:
        _make_room_for(Path(options.json))
    from flows.demo import demo  # here, so that --help answers at once

    recipes = list(dict.fromkeys(options.recipe or ["recipes.mnist"]))
    made = demo(
        settings.home(),
        recipes=recipes,
        backend=options.backend,
        free_ports=options.ports == "free",
        keep=options.keep,
        say=say,
    )
    summaries = [summary.as_dict() for summary in made]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(summaries if len(recipes) > 1 else summaries[0], file, indent=1)
    return 0


if __name__ == "__main__":
    # A parent that starts commands in the background may have had SIGINT ignored, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
