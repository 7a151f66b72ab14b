"""Processes that are killed while they apply and undo a patch over shared memory; what is left must be mended.

    python -m tests.ckpt.kill_live --rounds 30 --seed 5

Each round forks a writer that takes up the record and writes forth and back until it is killed. Then the memory must be
the base where the record's word says ``staged`` or ``undone``, the target where it says ``applied``, and in any case
``ckpt.staged`` must lead from it to either end. Prints {"rounds": n, "torn": those that left neither of the two}.
"""

import argparse
import json
import os
import random
import select
import signal
import tempfile
from pathlib import Path

import torch

import ckpt

MEMORY = Path("/dev/shm")
_SIZE = 8_000_000  # elements
_LONGEST_S = 0.05


def shared(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of the test, in memory that outlives a process."""
    flat = torch.from_file(str(file), shared=True, size=_SIZE, dtype=torch.bfloat16)
    return {"sparse": flat[: _SIZE // 2], "dense": flat[_SIZE // 2 :].view(-1, 1000)}


def prepare(folder: Path) -> tuple[bytes, bytes]:
    """Checkpoints, their delta, and the record over memory that holds the base; bytes of base and target."""
    torch.manual_seed(0)
    flat = torch.randn(_SIZE).bfloat16()
    flat.view(torch.uint8).numpy().tofile(folder / "memory")
    live = shared(folder / "memory")
    base = ckpt.save(live, folder / "base")
    moved = flat.clone()
    moved.view(torch.int16)[: _SIZE // 2 : 7] += 1
    moved[_SIZE // 2 :] *= 3
    ckpt.save({"sparse": moved[: _SIZE // 2], "dense": moved[_SIZE // 2 :].view(-1, 1000)}, folder / "target")
    ckpt.diff(folder / "base", folder / "target", folder / "delta")
    ckpt.stage(folder / "delta", live, manifest=base).save(folder / "record")
    return flat.view(torch.uint8).numpy().tobytes(), moved.view(torch.uint8).numpy().tobytes()


def write_until_killed(folder: Path, ready: int) -> None:
    patch = ckpt.staged(folder / "record", shared(folder / "memory"))
    os.write(ready, b"!")
    while True:
        patch.apply(threads=1)
        patch.undo(threads=1)


def kill_one(folder: Path, after_s: float) -> None:
    """Fork a writer, wait until it writes, and then some time; kill it."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            write_until_killed(folder, told)
        finally:
            os._exit(1)
    os.close(told)
    assert os.read(ready, 1) == b"!", "the writer could not take up the record"
    select.select([ready], [], [], after_s)
    os.kill(child, signal.SIGKILL)
    os.close(ready)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a pool of threads does not outlive a fork
    draw, torn = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        folder = Path(place)
        base, target = prepare(folder)
        for number in range(arguments.rounds):
            kill_one(folder, draw.uniform(0, _LONGEST_S))
            found = (folder / "memory").read_bytes()
            patch = ckpt.staged(folder / "record", shared(folder / "memory"))
            torn += found not in (base, target)
            expected = {"applied": target, "staged": base, "undone": base}.get(patch.state, found)
            assert found == expected, f"round {number}: the word says '{patch.state}'"
            for call, wanted in ((patch.apply, target), (patch.undo, base))[:: draw.choice((1, -1))]:
                call(threads=1)
                assert (folder / "memory").read_bytes() == wanted, (
                    f"round {number}: not what {call.__name__} is to leave"
                )
    print(json.dumps({"rounds": arguments.rounds, "torn": torn}))


if __name__ == "__main__":
    main()
