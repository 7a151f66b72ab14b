"""Command line: ``python -m compiler {explain,onnx,page} …``, ``--help`` says more.

Exit code 0 when the program is whole, 1 when something is not as it has to be (with the fault on standard error).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from command_line import run_command
from compiler.backends.onnx_files import write_files
from compiler.errors import BackendRefusedError, CompilerError
from compiler.explanation import FORMS, as_graphs, as_text, as_values
from compiler.page import make_server
from compiler.program import Program, load
from compiler.storage import PROGRAM_FILE
from compiler.weights import read_weights

_PROGRAM = "a program's folder, or a checkpoint that carries one in its folder 'program'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        answer = chosen.run(chosen)
    except (CompilerError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(answer.rstrip("\n"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compiler", description="Look into compiled programs.")
    commands = parser.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="what was folded, what was refused and why, and how exact it is")
    explain.add_argument("folder", help=_PROGRAM)
    explain.add_argument("--graph", choices=FORMS, help="the graph before the passes and after them, instead")
    explain.set_defaults(run=_explain)
    onnx = commands.add_parser(
        "onnx",
        help="two files for any ONNX Runtime: the graph, and the weights in the program's constants",
        description="Write model.onnx and constants.bin into OUT. Where OUT holds them for the same graph, only the "
        "ranges of constants.bin that differ are written; whoever opens it finds the old weights or the new ones.",
    )
    onnx.add_argument("folder", metavar="PROGRAM", help=f"{_PROGRAM}; compiled with backend='onnx'")
    onnx.add_argument("weights", metavar="WEIGHTS", help="a safetensors file, or a checkpoint's folder")
    onnx.add_argument("out", metavar="OUT", help="a new folder, or one that this command wrote")
    onnx.set_defaults(run=_onnx)
    page = commands.add_parser(
        "page",
        help="serve a page that runs such files in a browser, on this machine alone, until interrupted",
        description="The page reads the files in the browser and sends them nowhere. 'make web' fetches its runtime.",
    )
    page.add_argument("--port", type=int, default=8080, help="default: %(default)s; 0 takes a free one")
    page.set_defaults(run=_page)
    for command in (explain, onnx):
        command.add_argument("--json", action="store_true", help="everything, as one JSON object")
    return parser


def _explain(chosen: argparse.Namespace) -> str:
    program = _load(chosen.folder)
    if chosen.graph:
        return as_graphs(program, chosen.graph)
    return json.dumps(as_values(program), indent=2) if chosen.json else as_text(program)


def _onnx(chosen: argparse.Namespace) -> str:
    program = _load(chosen.folder)
    package = next((program.packages[target.path] for target in program.targets if target.backend == "onnx"), None)
    if package is None:
        raise BackendRefusedError(
            backend="onnx",
            reason=f"'{chosen.folder}' holds no graph for it",
            next_step="Compile the model with backend='onnx'.",
        )
    memory = program.allocate()
    program.evaluate(read_weights(chosen.weights, {spec.name for spec in program.requires}), memory)
    written = write_files(package, program.constants, memory, chosen.out)
    if chosen.json:
        return json.dumps({"out": chosen.out, "constants": written.constants, "size_bytes": written.size_bytes})
    return (
        f"{chosen.out}: wrote {len(written.constants)} of {len(program.constants)} constants, "
        f"{written.size_bytes:,} of {program.arena_bytes:,} bytes"
    )


def _page(chosen: argparse.Namespace) -> str:
    with make_server(chosen.port) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
    return ""


def _load(folder: str) -> Program:
    carried = Path(folder) / "program"
    inside = not (Path(folder) / PROGRAM_FILE).exists() and (carried / PROGRAM_FILE).exists()
    return load(carried if inside else folder)


if __name__ == "__main__":
    sys.exit(main())
