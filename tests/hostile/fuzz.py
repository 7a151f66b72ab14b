"""Look for inputs that break a reader, guided by the code they reach; not collected by pytest. Needs atheris.

    make fuzz FUZZ_SECONDS=600

Each target of :mod:`tests.hostile.fuzz_targets` has its share of the time, in a process of its own (a fuzzer never
returns). What is found stays in ``HOME/findings``: one file for each input, named by target. The corpus of a run is
kept in ``HOME/corpus`` and is where the next one goes on.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_INPUT_BYTES = 1 << 17
INPUT_S, MEMORY_MIB = 20, 3072  # an input that takes longer, or more, is a finding


def fuzz(name: str, work: Path, arguments: list[str]) -> None:
    """Fuzz one target; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["ckpt"]):
        from tests.hostile import fuzz_targets
    import torch

    torch.set_num_threads(1)
    target = fuzz_targets.target(name, work)
    count = len(target.messages)
    corpus = Path(arguments[-1])
    for number, seed in enumerate(target.seeds):
        target.attack(seed)  # here, so that what is compiled at first use is no input's slowness
        (corpus / f"seed-{number}").write_bytes(fuzz_targets.packed(seed))

    def change(data: bytes, most: int, seed: int) -> bytes:
        return fuzz_targets.mutated(target, data, atheris.Mutate, seed=seed, most=most)

    atheris.Setup(
        [name, *arguments], lambda data: target.attack(fuzz_targets.unpacked(data, count)), custom_mutator=change
    )
    atheris.Fuzz()


def replay(name: str, input_file: Path) -> None:
    """Give a harness one input again, without atheris; raises what was found."""
    from tests.hostile import fuzz_targets

    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as work:
        target = fuzz_targets.target(name, Path(work))
        target.attack(fuzz_targets.unpacked(input_file.read_bytes(), len(target.messages)))


def run(name: str, home: Path, seconds: int) -> tuple[int, float, str]:
    """One target for a time.

    Returns:
        Executions, executions in a second, and what was found (empty: nothing).
    """
    corpus, findings = home / "corpus" / name, home / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={INPUT_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={findings}/{name}-",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # to sync each file on a disk would take all the time
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=memory) as work:
        command = [sys.executable, "-m", "tests.hostile.fuzz", "--target", name, "--home", work, *options, str(corpus)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    count = int((re.findall(r"number_of_executed_units: (\d+)", said) or ["0"])[-1])
    return count, count / max(seconds, 1), "" if done.returncode == 0 and count else said


def _told(said: str) -> str:
    """The exception and where it was raised; what libFuzzer says of the input."""
    start = said.find("=== Uncaught Python exception")
    lines = said[max(start, 0) :].splitlines()
    return "\n".join(line for line in lines if not re.match(r"INFO:|#\d|0x|stat::", line.strip()))[-6000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=Path(".treering/fuzz"), help="where corpus and findings are kept")
    parser.add_argument("--target", help="this one alone")
    parser.add_argument("--replay", type=Path, help="give the target this input, a finding, once more")
    options, rest = parser.parse_known_args()
    if options.replay:
        replay(options.target, options.replay)
        return 0
    if rest:
        fuzz(options.target, options.home, rest)
    from tests.hostile.fuzz_targets import TARGETS

    names = [options.target] if options.target else list(TARGETS)
    found, total = 0, 0
    for name in names:
        count, rate, said = run(name, options.home, options.seconds // len(names))
        total += count
        print(f"{name:12}{count:9,} executions {rate:8,.0f}/s  {'FOUND' if said else 'nothing found'}", flush=True)
        if said:
            found += 1
            print(_told(said), flush=True)
    print(f"{total:,} executions in {options.seconds} s, {found} finding(s); inputs in {options.home / 'findings'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
