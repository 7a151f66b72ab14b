"""Runs of the demo on a machine that has a bad day: ``python -m tests.flows.soak_bad_days``.

full disk   the state folder's disk fills up in the middle of a run, and is freed again
no shm      no /dev/shm
clock       the time of day jumps back an hour while the fleet is watched (day.c; monotonic clocks go on)
odd path    a state folder with spaces and letters beyond ASCII

Needs root for the first two. Each prints ``works``, or the word that a user sees, followed by what the next run does.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flows.killing import Stack, last_word

DAY = Path(__file__).with_name("day.c")


def main() -> int:
    """Run the chosen days; 1 when one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="a new folder")
    parser.add_argument("days", nargs="*", choices=[*DAYS, []], help=f"of {', '.join(DAYS)} (default: all)")
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for day in options.days or DAYS:
        outcomes[day] = DAYS[day](options.home.resolve() / day)
        print(f"{day:<10} {outcomes[day]}", flush=True)
    return int(any(outcome.startswith("BAD") for outcome in outcomes.values()))


def full_disk(folder: Path) -> str:
    """The run fails with a word, loses nothing, and the next one works once there is room."""
    with _mounted(folder, "size=420m"):
        stack = Stack(folder)
        balloon = folder / "balloon"

        def fill() -> None:
            with open(balloon, "wb") as file:
                while True:
                    try:
                        file.write(bytes(1 << 20))
                        file.flush()
                    except OSError:
                        return

        full = stack.pipeline(at={"release-2": fill})
        balloon.unlink()
        return _ended(stack, f"{last_word(full.output)} (exit {full.status}); next run: ", good=full.status == 1)


def no_shm(folder: Path) -> str:
    """As in a container that mounts none."""
    without = ("unshare", "-m", "sh", "-c", 'umount /dev/shm && exec "$@"', "sh")
    return _ended(Stack(folder, prefix=without))


def clock(folder: Path) -> str:
    """The hour repeats after v3 went live: the drill must be caught all the same."""
    folder.mkdir(parents=True)
    offset = folder / "offset"
    library = folder / "day.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(DAY), "-ldl"], check=True)
    stack = Stack(folder, environment={"LD_PRELOAD": str(library), "DAY_OFFSET": str(offset)})
    return _ended(stack, at={"healthy": lambda: offset.write_text("-3600")})


def odd_path(folder: Path) -> str:
    """Everywhere a command line, a URI or a compiler is given a path."""
    return _ended(Stack(folder / "Größe & Maß, 年輪"))


DAYS: dict[str, Callable[[Path], str]] = {
    "full-disk": full_disk,
    "no-shm": no_shm,
    "clock": clock,
    "odd-path": odd_path,
}


def _ended(
    stack: Stack, before: str = "", *, good: bool = True, at: dict[str, Callable[[], object]] | None = None
) -> str:
    run = stack.pipeline(at=at or {})
    try:
        stack.check_running()
        stack.check_down()
    except AssertionError as error:
        return f"BAD: {before}{error}"
    finally:
        stack.flows("down")
    if run.status or not good:
        return f"BAD: {before}{last_word(run.output)}"
    return f"{before}works"


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


if __name__ == "__main__":
    sys.exit(main())
