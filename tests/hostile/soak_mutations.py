"""Mutate manifests and deltas for as long as you like; not collected by pytest.

    python -m tests.hostile.soak_mutations --seconds 600

Prints a line a second and ends with the first input that is neither refused by an error of the package nor good.
"""

import argparse
import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from random import Random

import torch

import ckpt
from tests.hostile.edits import (
    copied,
    forge_files,
    mutate,
    refresh_frames,
    rewrite_delta,
    rewrite_manifest,
    save_pair,
    save_victim,
)


def attack_manifest(folder: Path, work: Path, choose: Random) -> bool:
    """Whether a mutated checkpoint was accepted."""
    victim = copied(folder / "victim", work / "c")
    rewrite_manifest(victim, lambda message: [mutate(message, choose) for _ in range(choose.randint(1, 4))])
    if choose.random() < 0.5:
        with contextlib.suppress(ckpt.FormatError, IndexError, KeyError, FileNotFoundError):
            forge_files(victim)
    try:
        ckpt.load(victim, verify="sha256")
    except ckpt.CheckpointError:
        return False
    ckpt.verify(victim)
    return True


def attack_delta(folder: Path, work: Path, choose: Random) -> bool:
    """Whether a mutated delta was accepted; what it made has the root that it states, then."""
    delta = copied(folder / "delta", work / "d")
    if choose.random() < 0.5:
        rewrite_delta(delta, lambda message: [mutate(message, choose) for _ in range(choose.randint(1, 4))])
    else:
        refresh_frames(delta, choose)
    try:
        made = ckpt.apply(folder / "old", delta, work / "made")
    except ckpt.CheckpointError:
        assert not (work / "made").exists()
        return False
    assert made.seal == ckpt.read_delta(delta).target_seal
    assert ckpt.verify(work / "made").ok
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    save_victim(folder)
    save_pair(folder)
    end, shown, seed, accepted = time.monotonic() + options.seconds, 0.0, options.seed, [0, 0]
    while time.monotonic() < end:
        work = folder / "work"
        work.mkdir()
        try:
            accepted[0] += attack_manifest(folder, work, Random(seed))
            accepted[1] += attack_delta(folder, work, Random(seed))
        except BaseException:
            print(f"seed {seed} broke in {work}")
            raise
        shutil.rmtree(work)
        seed += 1
        if time.monotonic() > shown + 1:
            shown = time.monotonic()
            print(f"{seed - options.seed} seeds, accepted {accepted[0]} manifests and {accepted[1]} deltas", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
