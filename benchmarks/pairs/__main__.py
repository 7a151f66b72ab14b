"""``python -m benchmarks.pairs OUT``: make the pairs, and print how large they are and how much of each changed."""

import sys
from collections.abc import Sequence
from pathlib import Path

import ckpt
from benchmarks.errors import BenchmarkError
from benchmarks.pairs import MIB, make, sources
from benchmarks.pairs.changes import changed_share
from ckpt.command_line import Parser, parsed, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Make and print pair after pair; those that are there already are only printed."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parsed(_parser(), arguments)
    table = sources(is_quick=options.quick, synthetic_mib=options.synthetic_mib)
    names = options.only or [name for source in table for name in source.pairs]
    try:
        make(table, options.out, names=names, say=lambda name: print(_line(options.out / name), flush=True))
    except BenchmarkError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _line(pair: Path) -> str:
    size_mib = ckpt.read_manifest(pair / "target").payload_bytes / MIB
    return f"{pair.name:<28} {size_mib:9.1f} MiB {changed_share(pair / 'base', pair / 'target'):9.3%} changed"


def _parser() -> Parser:
    parser = Parser(prog="python -m benchmarks.pairs", description="Pairs of checkpoints.")
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder; pairs that it holds are kept")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these pairs (default: all)")
    parser.add_argument("--quick", action="store_true", help="small models, fewer steps")
    parser.add_argument(
        "--synthetic-mib", type=int, default=1024, metavar="N", help="of random weights (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
