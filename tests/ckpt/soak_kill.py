"""SIGKILL at every system call that changes the disk, for whatever writes checkpoints; not run by pytest.

    python -m tests.ckpt.soak_kill            # a few minutes; needs strace and the right to trace

For each action and system call the n-th call of a writer kills it, n = 1, 2, … until the writer lives. Afterwards the
path must hold the old root, the new root or nothing (where a signer was killed: what it held before, signed or not),
and the next writer must leave no leftovers behind. The last lines also run an action on a file system that fills up (a
tmpfs of 1 MiB, where mounting is allowed).
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file

import ckpt

CALLS = ("mkdir", "openat", "write", "fsync", "flock", "close")
CALLS += ("rename", "renameat", "renameat2", "unlinkat", "unlink", "rmdir")
ALLOWED = {
    "save": {"nothing", "new"},
    "save_async": {"nothing", "new"},
    "overwrite": {"old", "new"},
    "apply": {"nothing", "new"},
    "sign": {"old", "signed"},
}
KEY = Ed25519PrivateKey.generate()
OLD, NEW = ({"w": torch.full((300_000,), value), "v": torch.arange(3)} for value in (1.0, 2.0))


def killed_at(
    call: str, number: int, action: Callable[[], object], *, prepare: Callable[[], object] = lambda: None
) -> bool:
    """Run an action in a child that dies at its n-th call, not counted before; False when it lived to the end."""
    (reading, writing), (waiting, prepared) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        prepare()
        os.close(prepared)
        os.read(reading, 1)
        action()
        os._exit(0)
    os.close(reading)
    os.close(prepared)
    os.read(waiting, 1)
    os.close(waiting)
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
    tracer = subprocess.Popen(["strace", "-f", "-o", "/dev/null", *inject, "-p", str(child)], stderr=subprocess.DEVNULL)
    while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
        assert tracer.poll() is None, "strace could not attach"
        time.sleep(0.001)
    os.write(writing, b"x")
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tracer.wait()
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def state_of(path: Path, roots: dict[str, str]) -> str:
    if not path.exists():
        return "nothing"
    report = ckpt.verify(path)
    if ckpt.verify(path, trust=[KEY.public_key()]).ok:
        return "signed"
    return roots.get(str(report.root), "another root") if report.ok and not report.foreign else "broken"


def attack(name: str, work: Path) -> Counter[str]:
    """Every call, every number: what was found afterwards."""
    path, other = work / "c", work / "given"
    roots = {ckpt.save(OLD, other / "old").root: "old", ckpt.save(NEW, other / "new").root: "new"}
    ckpt.diff(other / "old", other / "new", other / "delta")
    action: Callable[[], object] = {
        "save": lambda: ckpt.save(NEW, path),
        "save_async": lambda: ckpt.save_async(NEW, path).result(),
        "overwrite": lambda: ckpt.save(NEW, path, overwrite=True),
        "apply": lambda: ckpt.apply(other / "old", other / "delta", path),
        "sign": lambda: ckpt.sign(path, KEY),
    }[name]
    found: Counter[str] = Counter()
    for call in CALLS:
        number, alive = 0, False
        while not alive:
            number += 1
            if path.exists():
                subprocess.run(["rm", "-rf", str(path)], check=True)
            if name in ("overwrite", "sign"):
                ckpt.save(OLD, path)
            alive = not killed_at(call, number, action)
            state = state_of(path, roots)
            found[state] += 1
            allowed = ALLOWED[name] if not alive else {"signed"} if name == "sign" else {"new"}
            assert state in allowed, f"{name} killed at {call} {number}: {state}"
            ckpt.save(NEW, path, overwrite=True)
            left = sorted(entry.name for entry in work.iterdir())
            assert left == ["c", "given"], f"{name} killed at {call} {number} left {left}"
        print(f"{name:11}{call:10}{number - 1:4} kills", flush=True)
    return found


def attack_adoption(work: Path) -> Counter[str]:
    """As :func:`attack`, for the manifest of a file that is there already."""
    file, manifest = work / "x.safetensors", work / "x.safetensors.manifest.pb"
    save_file(OLD, file)
    found: Counter[str] = Counter()
    for call in (*CALLS, "linkat", "link"):
        number, alive = 0, False
        while not alive:
            number += 1
            manifest.unlink(missing_ok=True)
            alive = not killed_at(call, number, lambda: ckpt.adopt(file))
            found["adopted" if manifest.exists() else "not yet"] += 1
            assert ckpt.verify(file).ok if manifest.exists() else not alive, f"adopt killed at {call} {number}"
            ckpt.adopt(file)
            left = sorted(entry.name for entry in work.iterdir())
            assert left == [file.name, manifest.name], f"adopt killed at {call} {number} left {left}"
        print(f"{'adopt':11}{call:10}{number - 1:4} kills", flush=True)
    return found


def attack_retention(work: Path) -> Counter[str]:
    """As :func:`attack`, for the removal of all checkpoints but the newest."""
    found: Counter[str] = Counter()
    for call in CALLS:
        number, alive = 0, False
        while not alive:
            number += 1
            for step in (1, 2, 3):
                if not (work / f"step-{step}").exists():
                    ckpt.save(OLD, work / f"step-{step}")
            alive = not killed_at(call, number, lambda: ckpt.keep(work, newest=1))
            left = sorted(work.glob("step-*"))
            found[f"{len(left)} left"] += 1
            assert all(ckpt.verify(path).ok for path in left), f"keep killed at {call} {number}: one is broken"
            assert ckpt.latest(work) == work / "step-3", f"keep killed at {call} {number}"
            ckpt.keep(work, newest=1)
            names = sorted(entry.name for entry in work.iterdir())
            assert names == ["step-3"], f"keep killed at {call} {number} left {names}"
        print(f"{'keep':11}{call:10}{number - 1:4} kills", flush=True)
    return found


def attack_going_on(work: Path) -> Counter[str]:
    """As :func:`attack`, for calls that go on with what a killed one left: what they end in is the same bytes."""
    base, target, delta, back = work / "old", work / "new", work / "delta", work / "back"
    ckpt.save(OLD, base)
    ckpt.save(NEW, target)
    ckpt.diff(target, base, back)
    found: Counter[str] = Counter()
    for name, call_it in (
        ("diff", lambda out: ckpt.diff(base, target, out)),
        ("apply", lambda out: ckpt.apply(base, delta, out)),
        ("squash", lambda out: ckpt.squash([delta, back] * 3, out, base=base)),
    ):
        call_it(work / "whole")
        whole = {file.name: file.read_bytes() for file in (work / "whole").iterdir()}
        (work / "whole").rename(work / ("delta" if name == "diff" else f"made by {name}"))
        path = work / "out"
        for call in (*CALLS, "ftruncate", "lseek"):
            number, alive = 0, False
            while not alive:
                number += 1
                alive = not killed_at(call, number, partial(call_it, path))
                found[f"{name} {'done' if path.exists() else 'begun'}"] += 1
                if not path.exists():
                    call_it(path)
                    assert not list(work.glob(".*")), f"{name} killed at {call} {number} left something"
                assert {file.name: file.read_bytes() for file in path.iterdir()} == whole, f"{name} at {call} {number}"
                subprocess.run(["rm", "-rf", str(path)], check=True)
            print(f"{name:11}{call:10}{number - 1:4} kills", flush=True)
    return found


def attack_collection(work: Path) -> Counter[str]:
    """As :func:`attack`, for the removal of what killed writers left: an old state, and half of a new one."""
    run, given = work / "run", work / "given"
    ckpt.save(OLD, given / "step-1")
    assert killed_at("unlinkat", 1, lambda: ckpt.save(NEW, given / "step-1", overwrite=True))
    assert killed_at("fsync", 2, lambda: ckpt.save(NEW, given / "step-2"))
    root = ckpt.read_manifest(given / "step-1").root
    assert len(os.listdir(given)) == 3
    found: Counter[str] = Counter()
    for call in CALLS:
        number, alive = 0, False
        while not alive:
            number += 1
            shutil.copytree(given, run, dirs_exist_ok=True)
            alive = not killed_at(call, number, lambda: ckpt.keep(run, newest=1))
            found[f"{len(os.listdir(run)) - 1} left"] += 1
            assert ckpt.latest(run) == run / "step-1", f"collect killed at {call} {number}"
            assert ckpt.verify(run / "step-1", root=root).ok, f"collect killed at {call} {number}: it is broken"
            ckpt.keep(run, newest=1)
            assert os.listdir(run) == ["step-1"], f"collect killed at {call} {number} left {os.listdir(run)}"
        print(f"{'collect':11}{call:10}{number - 1:4} kills", flush=True)
    return found


def fill_up(work: Path) -> None:
    disk = work / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        print("ENOSPC: no right to mount, not tried")
        return
    try:
        small = ckpt.save({"w": torch.zeros(9)}, disk / "c").root
        with pytest.raises(OSError, match="No space left"):
            ckpt.save(NEW, disk / "c", overwrite=True)
        assert ckpt.verify(disk / "c", root=small).ok
        assert [entry.name for entry in disk.iterdir()] == ["c"]
        print("ENOSPC: refused, the old state is there, nothing is left over")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def main() -> None:
    torch.set_num_threads(1)
    for name in ALLOWED:
        with tempfile.TemporaryDirectory(prefix="soak-") as work:
            print(name, dict(attack(name, Path(work))), flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        print("adopt", dict(attack_adoption(Path(work))), flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        print("keep", dict(attack_retention(Path(work))), flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        print("going on", dict(attack_going_on(Path(work))), flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        print("collect", dict(attack_collection(Path(work))), flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        fill_up(Path(work))


if __name__ == "__main__":
    main()
