"""The command line: ``python -m serving``, ``python -m serving fleet``, ``python -m serving worker``.

Each command imports what it needs when it runs: ``--help`` does not wait for torch, and a worker does not carry the
MLflow of a registry, which costs a process 130 MB and a second.
"""

import argparse
import functools
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import run_command
from serving.errors import ServingError, SourceError, StartError, quote
from serving.server import address, listen
from serving.token import TOKEN_VARIABLE, find_token

if TYPE_CHECKING:
    from serving.source import Source

STATE_FOLDER = Path(".treering/fleet")
EPILOG = f"""
commands:
  python -m serving --model NAME@ALIAS --port P      one worker that follows the alias
  python -m serving fleet --model NAME@ALIAS ...     several
  python -m serving worker --model NAME ...          one worker on one folder; speaks to no registry

Control calls need a token: --token-file, or the environment variable {TOKEN_VARIABLE}.
"""
Parser = functools.partial(argparse.ArgumentParser, formatter_class=argparse.RawDescriptionHelpFormatter)


def main(arguments: Sequence[str]) -> int:
    """Run a command; return the exit status: 1 after an error, and when a line of it could not be written."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    commands = {"worker": _worker, "fleet": _fleet}
    command = commands.get(arguments[0]) if arguments else None
    try:
        if command is None:
            _single(arguments)
        else:
            command(arguments[1:])
    except ServingError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _single(arguments: Sequence[str]) -> None:
    parser = Parser(prog="python -m serving", description="Serve what an alias names, on one port.", epilog=EPILOG)
    _add_fleet_options(parser)
    parser.add_argument("--port", type=int, default=8000, help="where the worker serves (default 8000; 0: a free one)")
    parser.add_argument("--fleet-port", type=int, default=0, help="where the status is served (default: a free one)")
    options = parser.parse_args(arguments)
    _run_fleet(options, port=options.fleet_port, worker_ports=[options.port])


def _fleet(arguments: Sequence[str]) -> None:
    parser = Parser(prog="python -m serving fleet", description="Keep several workers at what an alias names.")
    _add_fleet_options(parser)
    parser.add_argument("--workers", type=_count, default=2, help="how many (default 2)")
    parser.add_argument(
        "--port", type=int, default=8080, help="where the status is served (default 8080; 0: a free one)"
    )
    parser.add_argument(
        "--worker-ports", type=_ports, help="where the workers serve: P,P,... (default: free ones, see the status)"
    )
    options = parser.parse_args(arguments)
    worker_ports = options.worker_ports or [0] * options.workers
    _run_fleet(options, port=options.port, worker_ports=worker_ports)


def _worker(arguments: Sequence[str]) -> None:
    parser = Parser(prog="python -m serving worker", description="Serve one checkpoint folder.")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model's name in request paths")
    parser.add_argument("--folder", required=True, type=Path, help="a checkpoint folder with its program attached")
    parser.add_argument("--root", required=True, help="what the checkpoint's root must be: sha256:...")
    parser.add_argument("--seal", required=True, help="what its seal must be, which covers the program: sha256:...")
    parser.add_argument("--version", default="0", help="answered as model_version (default 0)")
    parser.add_argument("--token-file", type=Path, help="holds the token of control calls; mode 600")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--port", type=int, default=8000, help="where to serve (default 8000; 0: a free one)")
    where.add_argument("--fd", type=int, help="serve on this inherited listening socket instead")
    options = parser.parse_args(arguments)
    token = find_token(options.token_file)
    listener = listen(options.port) if options.fd is None else socket.socket(fileno=options.fd)
    from serving.worker import serve

    url = address(listener)
    serve(
        model=options.model,
        folder=options.folder,
        root=options.root,
        seal=options.seal,
        version=options.version,
        listener=listener,
        token=token,
        on_ready=lambda: print(f"ready: {options.model} {options.root} on {url}", flush=True),
        stop_with_stdin=options.stop_with_stdin,
    )


def _add_fleet_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME@ALIAS", help="for example mnist@champion")
    parser.add_argument(
        "--from", dest="folder", type=Path, help="take versions from this folder (default: from the registry)"
    )
    parser.add_argument("--token-file", type=Path, help="holds the token of control calls; mode 600")
    parser.add_argument(
        "--state", type=Path, default=STATE_FOLDER, help=f"folder for status.json (default {STATE_FOLDER})"
    )


def _run_fleet(options: argparse.Namespace, *, port: int, worker_ports: Sequence[int]) -> None:
    from serving.fleet_process import run_fleet

    name, at, alias = options.model.partition("@")
    if not (name and at and alias):
        raise StartError("--model", found=quote(options.model), expected="NAME@ALIAS, for example mnist@champion")
    source = _source(options.folder)
    token = find_token(options.token_file)
    with ExitStack() as stack:
        listener, *worker_listeners = (stack.enter_context(listen(number)) for number in (port, *worker_ports))
        print(f"fleet: {options.model}, status on {address(listener)}", flush=True)
        for index, worker in enumerate(worker_listeners):
            print(f"worker {index}: {address(worker)}", flush=True)
        run_fleet(
            source=source,
            name=name,
            alias=alias,
            listener=listener,
            worker_listeners=worker_listeners,
            token=token,
            state_folder=options.state,
            say=_say_when,
        )


def _say_when(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _source(folder: Path | None) -> "Source":
    """Take versions from a folder, or from the registry that the environment names."""
    from serving.registry_source import RegistrySource
    from serving.source import FolderSource

    if folder is not None:
        return FolderSource(folder)
    import registry

    try:
        return RegistrySource(registry.Server.from_environment())
    except registry.RegistryError as error:
        raise SourceError("the registry", found=str(error), expected="MLFLOW_TRACKING_URI, or --from FOLDER") from error


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected at least 1")
    return int(text)


def _ports(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    # A parent that starts commands in the background may have had SIGINT ignored, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
