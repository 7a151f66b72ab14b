"""What a disk may hold after a power loss: a model between system calls and the states that may survive them.

:func:`record` runs a program under strace and gives the calls by which it changed a folder. :class:`Disk` plays them
and keeps apart what the program sees from what is safe:

- the bytes of a file are safe once the file was fsynced; until then each page of 4 KiB may be there, or be what it was
  before (zeros where the file was shorter), and the file may end anywhere in between;
- a name is safe once its folder was fsynced; until then any of the folder's changes may be there, whatever their order,
  a rename or an exchange as one change, one between two folders as two.

File systems keep more than that; whatever survives this survives them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

PAGE_BYTES = 4096
REPOSITORY = Path(__file__).resolve().parent.parent.parent
CALLS = "mkdir,openat,write,pwrite64,ftruncate,fsync,fdatasync"
CALLS += ",rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir"
STRACE = ["strace", "-f", "-y", "-qq", "-xx", "-s", "4000000", "-e", "signal=none", "-e", f"trace={CALLS}", "-o"]

_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) = (\d+)(?:<(.*)>)?$", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r"^(?:AT_FDCWD|\d+)<([^>]*)>")


def may_trace() -> bool:
    """Whether strace is there, and may do its work."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run([*STRACE, "/dev/null", "true"], check=False, capture_output=True).returncode == 0


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded: its name, its arguments as strace shows them, the path of what it opened."""

    name: str
    arguments: tuple[str, ...]
    opened: str


def record(program: str, folder: Path, *arguments: str) -> list[Call]:
    """Run a Python program; the calls that changed ``folder``, which it is given as its first argument."""
    trace = folder.with_name(f"{folder.name}.trace")
    command = [*STRACE, str(trace), sys.executable, "-c", program, str(folder), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, timeout=120, env=environment, cwd=REPOSITORY)
    return [call for call in _calls(trace.read_text()) if _changes(call, str(folder))]


def _calls(trace: str) -> Iterator[Call]:
    """Calls in the order in which they ended; strace splits those of threads that overlap."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        if "resumed>" in line:
            line = begun.pop(thread) + line.split("resumed>", 1)[1]
        match = _CALL.match(re.sub(r"\) +=", ") =", line))
        if match:
            yield Call(match[1], tuple(match[2].split(", ")), _decoded(match[4] or ""))  # texts are hexadecimal


def _decoded(text: str) -> str:
    return os.fsdecode(_bytes(text))


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _changes(call: Call, folder: str) -> bool:
    """Whether a call changes something in a folder, or makes something in it safe."""
    if call.name == "openat":
        return call.opened.startswith(folder) and ("O_CREAT" in call.arguments[2] or "O_TRUNC" in call.arguments[2])
    places = call.arguments[:4] if call.name.startswith(("rename", "link")) else call.arguments[:2]
    return any(_path(place).startswith(folder) for place in places)


def _path(argument: str) -> str:
    """The path in an argument: quoted, or that of a descriptor."""
    if place := _PLACE.match(argument):
        return _decoded(place[1])
    return _decoded(match[1]) if (match := _TEXT.match(argument)) else ""


@dataclass(slots=True)
class _File:
    now: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    touched: set[int] = field(default_factory=set)  # pages written since the last fsync


Change = tuple[str, ...]  # ("link", name, number) | ("unlink", name) | ("rename", a, b) | ("exchange", a, b)


@dataclass(slots=True)
class _Folder:
    now: dict[str, int] = field(default_factory=dict)
    safe: dict[str, int] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)  # since the last fsync


Tree = dict[str, bytes | None]  # relative path → bytes of a file, None for a folder


class Disk:
    """A folder with its files, as a program sees it and as far as it is safe."""

    def __init__(self, folder: Path) -> None:
        """Take in what lies there; all of it is safe."""
        self._root = str(folder)
        self._nodes: list[_File | _Folder] = []
        self._take_in(folder)

    def _take_in(self, path: Path) -> int:
        number = len(self._nodes)
        if path.is_dir():
            folder = _Folder()
            self._nodes.append(folder)
            folder.now = {child.name: self._take_in(child) for child in sorted(path.iterdir())}
            folder.safe = dict(folder.now)
        else:
            data = path.read_bytes()
            self._nodes.append(_File(now=bytearray(data), safe=data))
        return number

    def play(self, call: Call) -> None:
        """Let a call take effect; none of what it changes is safe but by fsync."""
        arguments = call.arguments
        match call.name:
            case "mkdir":
                self._add(_path(arguments[0]), _Folder())
            case "openat":
                if "O_TRUNC" in arguments[2]:
                    raise NotImplementedError("a file that is written over in place")
                if "O_CREAT" in arguments[2] and self._find(call.opened) is None:
                    self._add(call.opened, _File())
            case "write":
                file = self._file(_path(arguments[0]))
                self._write(file, len(file.now), _bytes(_quoted(arguments[1])))
            case "pwrite64":
                self._write(self._file(_path(arguments[0])), int(arguments[3]), _bytes(_quoted(arguments[1])))
            case "ftruncate":
                self._resize(self._file(_path(arguments[0])), int(arguments[1]))
            case "fsync" | "fdatasync":
                self._sync(_path(arguments[0]))
            case "rename":
                self._rename(_path(arguments[0]), _path(arguments[1]), exchange=False)
            case "renameat" | "renameat2":
                source, target = _joined(*arguments[0:2]), _joined(*arguments[2:4])
                self._rename(source, target, exchange="RENAME_EXCHANGE" in call.arguments[-1])
            case "link":
                self._link(_path(arguments[1]), self._number(_path(arguments[0])))
            case "linkat":
                self._link(_joined(*arguments[2:4]), self._number(_joined(*arguments[0:2])))
            case "unlink" | "rmdir":
                self._unlink(_path(arguments[0]))
            case "unlinkat":
                self._unlink(_joined(*arguments[0:2]))

    # --- what a power loss leaves -------------------------------------------------------------------------------------

    def survivors(self, random: Random, *, tries: int) -> Iterator[Tree]:
        """States that may be there after a power loss now: the least, the most, each change alone or alone missing, and
        ``tries`` random ones."""
        changes = [(number, place) for number, node in self._folders() for place in range(len(node.changes))]
        every = set(changes)
        for kept in ([set(), every], [{one} for one in changes], [every - {one} for one in changes]):
            for some in kept:
                yield self._tree(some, random, share=0.0)
                yield self._tree(some, random, share=1.0)
        for _ in range(tries):
            some = {one for one in changes if random.random() < 0.5}
            yield self._tree(some, random, share=random.choice((0.0, 0.1, 0.5, 0.9, 1.0)))

    def _folders(self) -> Iterator[tuple[int, _Folder]]:
        for number, node in enumerate(self._nodes):
            if isinstance(node, _Folder):
                yield number, node

    def _tree(self, kept: set[tuple[int, int]], random: Random, *, share: float) -> Tree:
        tree: Tree = {}

        def walk(number: int, path: str) -> None:
            node = self._nodes[number]
            if isinstance(node, _File):
                tree[path] = _torn(node, random, share)
                return
            tree[path] = None
            names = dict(node.safe)
            for place, change in enumerate(node.changes):
                if (number, place) in kept:
                    _apply(names, change)
            for name in sorted(names):
                walk(names[name], f"{path}/{name}" if path else name)

        walk(0, "")
        return tree

    # --- calls --------------------------------------------------------------------------------------------------------

    def _write(self, file: _File, start: int, data: bytes) -> None:
        if len(file.now) < start:
            self._resize(file, start)
        file.now[start : start + len(data)] = data
        file.touched |= set(range(start // PAGE_BYTES, -(-(start + len(data)) // PAGE_BYTES)))

    def _resize(self, file: _File, size: int) -> None:
        low, high = sorted((size, len(file.now)))
        file.now = bytearray(file.now[:size].ljust(size, b"\0"))
        file.touched |= set(range(low // PAGE_BYTES, -(-high // PAGE_BYTES)))

    def _sync(self, path: str) -> None:
        number = self._find(path)
        node = None if number is None else self._nodes[number]
        if isinstance(node, _File):
            node.safe, node.touched = bytes(node.now), set()
        elif isinstance(node, _Folder):
            node.safe, node.changes = dict(node.now), []

    def _add(self, path: str, node: _File | _Folder) -> None:
        self._nodes.append(node)
        self._link(path, len(self._nodes) - 1)

    def _link(self, path: str, number: int) -> None:
        folder, name = self._parent(path)
        self._change(folder, ("link", name, str(number)))

    def _unlink(self, path: str) -> None:
        folder, name = self._parent(path)
        self._change(folder, ("unlink", name))

    def _rename(self, source: str, target: str, *, exchange: bool) -> None:
        old, name = self._parent(source)
        new, other = self._parent(target)
        if old is new:
            self._change(old, ("exchange" if exchange else "rename", name, other))
            return
        assert not exchange, "an exchange between two folders"
        self._change(new, ("link", other, str(self._number(source))))
        self._change(old, ("unlink", name))

    @staticmethod
    def _change(folder: _Folder, change: Change) -> None:
        _apply(folder.now, change)
        folder.changes.append(change)

    # --- paths --------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> int | None:
        number = 0
        for name in _parts(path, self._root):
            node = self._nodes[number]
            if not isinstance(node, _Folder) or name not in node.now:
                return None
            number = node.now[name]
        return number

    def _number(self, path: str) -> int:
        number = self._find(path)
        assert number is not None, f"'{path}' is not on the disk"
        return number

    def _file(self, path: str) -> _File:
        node = self._nodes[self._number(path)]
        assert isinstance(node, _File), f"'{path}' is no file"
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        node = self._nodes[self._number(str(Path(path).parent))]
        assert isinstance(node, _Folder), f"'{path}' is in no folder"
        return node, Path(path).name


def _parts(path: str, root: str) -> Sequence[str]:
    relative = os.path.relpath(path, root)
    return [] if relative == "." else relative.split("/")


def _joined(place: str, name: str) -> str:
    return os.path.join(_path(place), _decoded(_quoted(name)))


def _quoted(argument: str) -> str:
    match = _TEXT.match(argument)
    assert match, f"no text: {argument[:80]}"
    return match[1]


def _apply(names: dict[str, int], change: Change) -> None:
    """Let one change of a folder take effect, as far as it can without those before it."""
    match change:
        case ("link", name, number):
            names[name] = int(number)
        case ("unlink", name):
            names.pop(name, None)
        case ("rename", name, other) if name in names:
            names[other] = names.pop(name)
        case ("exchange", name, other) if name in names and other in names:
            names[name], names[other] = names[other], names[name]


def _torn(file: _File, random: Random, share: float) -> bytes:
    """A file of which each unsafe page is there with a probability."""
    if not file.touched or share == 1.0:
        return bytes(file.now)
    if share == 0.0:
        return file.safe
    low, high = sorted((len(file.safe), len(file.now)))
    size = random.choice((low, high, random.randint(low, high)))
    data = bytearray(file.safe[:size].ljust(size, b"\0"))
    for page in file.touched:
        if random.random() < share:
            start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, size)
            if start < end:
                data[start:end] = file.now[start:end].ljust(end - start, b"\0")
    return bytes(data)


def lay_out(tree: Tree, folder: Path) -> None:
    """Make a state into files."""
    for path, data in sorted(tree.items()):
        if data is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(data)


def states_after(calls: Sequence[Call], disk: Disk, *, tries: int) -> Iterator[tuple[int, Tree]]:
    """(how many calls had been made, what the disk may hold then)."""
    random = Random(0)
    for done in range(len(calls) + 1):
        if done:
            disk.play(calls[done - 1])
        for tree in disk.survivors(random, tries=tries):
            yield done, tree
