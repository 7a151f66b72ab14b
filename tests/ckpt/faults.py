"""System calls that fail, one after the other, under writers and readers: what was said, and what is there afterwards.

    python -m tests.ckpt.faults WORK every ACTION …

runs in a process under which :func:`library` is preloaded; for each action, kind of call and fault it forks a writer
whose n-th such call fails, n = 1, 2, … until the writer no longer meets it. Prints a JSON list of :class:`Outcome`.
"""

import ctypes
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file

import ckpt

SHORT = -1
# By kind of call. Those that end well: writing less than was given, and what is interrupted, which Python tries again.
FAULTS = {
    "write": (errno.ENOSPC, SHORT, errno.EIO, errno.EINTR),
    "fsync": (errno.EIO, errno.EINTR),
    "open": (errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM, errno.EINTR),
    "read": (errno.EIO, SHORT, errno.EINTR),
    "map": (errno.ENOMEM,),
    "close": (errno.EIO,),
    "mkdir": (errno.EROFS, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "remove": (errno.EIO,),
    "flock": (errno.ENOLCK, errno.EINTR),
    "truncate": (errno.EIO,),
}
OLD, NEW = ({"w": torch.full((3000,), value), "v": torch.arange(3), "n": value} for value in (1.0, 2.0))
KEY = Ed25519PrivateKey.from_private_bytes(bytes([5]) * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one fault led to.

    ``said`` is the error's class, empty where the writer succeeded, with its ``message`` and whether ``known``: the
    system's, with a path, or one of a source or destination that says what the system said; never one that takes the
    fault for bad bytes. ``state`` is what a reader found then, and ``left`` what was there beside it after the next
    writer.
    """

    action: str
    call: str
    fault: str
    number: int
    said: str
    message: str
    known: bool
    state: str
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What meets the fault (``act``) after ``begin``; a reader may find ``before`` or ``after`` then."""

    before: str
    after: str
    begin: Callable[[Path], object]
    act: Callable[[Path], object]


def library(folder: Path) -> Path:
    """Compile the library that is to be preloaded."""
    built, source = folder / "faults.so", Path(__file__).with_name("faults.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(built), str(source), "-ldl"], check=True)
    return built


def outcomes(work: Path, *actions: str, faults: str = "every") -> list[Outcome]:
    """Run actions in a process with the library; ``faults`` is "every", or "first": of each call, and short writes."""
    command = [sys.executable, "-m", "tests.ckpt.faults", str(work / "faults"), faults, *actions]
    environment = os.environ | {"LD_PRELOAD": str(library(work)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    return [Outcome(**{**item, "left": tuple(item["left"])}) for item in json.loads(done.stdout)]


def _nothing(_folder: Path) -> None:
    pass


def _damaged(folder: Path) -> None:
    ckpt.save(OLD, folder / "c")
    file = next((folder / "c").glob("weights-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data[:-4096] + b"\x55")


def _signed(folder: Path) -> None:
    (folder / "note").write_text("hello")
    ckpt.save(OLD, folder / "c", attachments={"docs/note": folder / "note"}, sign=KEY)
    (folder / "note").unlink()


def _read(folder: Path) -> None:
    ckpt.inspect(folder / "c")
    ckpt.load(folder / "c", mmap=False)
    ckpt.verify(folder / "c", trust=KEY.public_key()).raise_on_fault()
    with ckpt.open(folder / "c") as opened:
        opened.attachment("docs/note")


def _plain(folder: Path) -> None:
    save_file({"w": OLD["w"]}, folder / "c.safetensors")


ACTIONS = {
    "save": Action(before="nothing", after="new", begin=_nothing, act=lambda folder: ckpt.save(NEW, folder / "c")),
    "overwrite": Action(
        before="old",
        after="new",
        begin=lambda folder: ckpt.save(OLD, folder / "c"),
        act=lambda folder: ckpt.save(NEW, folder / "c", overwrite=True),
    ),
    "apply": Action(
        before="nothing",
        after="new",
        begin=_nothing,
        act=lambda folder: ckpt.apply(given(folder) / "old", given(folder) / "delta", folder / "c"),
    ),
    "sign": Action(
        before="old",
        after="signed",
        begin=lambda folder: ckpt.save(OLD, folder / "c"),
        act=lambda folder: ckpt.sign(folder / "c", KEY),
    ),
    "repair": Action(
        before="broken",
        after="old",
        begin=_damaged,
        act=lambda folder: ckpt.repair(folder / "c", given(folder) / "old").raise_on_fault(),
    ),
    "keygen": Action(before="nothing", after="keys", begin=_nothing, act=lambda folder: ckpt.keygen(folder / "c.pem")),
    "read": Action(before="signed", after="signed", begin=_signed, act=_read),
    "adopt": Action(
        before="not adopted", after="adopted", begin=_plain, act=lambda folder: ckpt.adopt(folder / "c.safetensors")
    ),
}


def given(folder: Path) -> Path:
    """Sound checkpoints, and the delta between them."""
    return folder.with_name("given")


def state_of(folder: Path) -> str:
    """What a reader finds, in a word."""
    if (folder / "c.safetensors").exists():
        adopted = (folder / "c.safetensors.manifest.pb").exists()
        return "not adopted" if not adopted else "adopted" if ckpt.verify(folder / "c.safetensors").ok else "broken"
    if keys := [file for file in (folder / "c.pem", folder / "c.pub.pem") if file.exists()]:
        return "keys" if len(keys) == 2 and all(file.stat().st_size for file in keys) else "broken"
    if not (folder / "c").exists():
        return "nothing"
    report = ckpt.verify(folder / "c")
    if not report.ok or report.foreign:
        return "broken"
    if ckpt.verify(folder / "c", trust=[KEY.public_key()]).ok:
        return "signed"
    return {ckpt.read_manifest(given(folder) / name).root: name for name in ("old", "new")}.get(report.root, "another")


def attempt(
    preloaded: ctypes.CDLL, action: Action, folder: Path, call: str, number: int, fault: int
) -> dict[str, object]:
    """Act in a child whose n-th call fails; what it says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said: dict[str, object] = {"said": "", "message": "", "known": True}
        preloaded.faults_arm(call.encode(), number, fault)
        try:
            action.act(folder)
        except Exception as error:  # noqa: BLE001  (whatever it is: it is judged by the parent)
            named = isinstance(error, OSError) and error.filename is not None
            ours = isinstance(error, ckpt.SourceError | ckpt.DestinationError)
            known = named or (ours and os.strerror(fault) in str(error))
            said = {"said": type(error).__name__, "message": str(error), "known": known}
        fired = preloaded.faults_fired()
        preloaded.faults_arm(b"", 0, 0)
        os.write(writing, json.dumps({**said, "fired": fired}).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        text = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found: dict[str, object] = json.loads(text)
    return found


def attack(preloaded: ctypes.CDLL, work: Path, name: str, call: str, fault: int) -> Iterator[Outcome]:
    """One fault at each of the calls of a kind that an action makes."""
    action, folder = ACTIONS[name], work / "f"
    for number in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        action.begin(folder)
        said = attempt(preloaded, action, folder, call, number, fault)
        if not said.pop("fired"):
            return
        state = state_of(folder)
        if name == "adopt":
            ckpt.adopt(folder / "c.safetensors")
        else:
            ckpt.save(NEW, folder / "c", overwrite=state != "nothing")
        left = tuple(sorted(path.name for path in folder.iterdir() if not path.name.startswith("c")))
        code = "short" if fault == SHORT else errno.errorcode[fault]
        yield Outcome(action=name, call=call, fault=code, number=number, state=state, left=left, **said)  # type: ignore[arg-type]


def main(work: Path, which: str, *names: str) -> None:
    torch.set_num_threads(1)
    work.mkdir()
    ckpt.save(OLD, work / "given" / "old")
    ckpt.save(NEW, work / "given" / "new")
    ckpt.diff(work / "given" / "old", work / "given" / "new", work / "given" / "delta")
    preloaded = ctypes.CDLL(os.environ["LD_PRELOAD"])
    found = [
        asdict(outcome)
        for name in names
        for call, faults in FAULTS.items()
        for number, fault in enumerate(faults)
        if which == "every" or number == 0 or fault == SHORT
        for outcome in attack(preloaded, work, name, call, fault)
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *sys.argv[3:])
