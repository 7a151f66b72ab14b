"""What a fuzzer calls with its bytes: only errors of ``ckpt.errors`` come out, and what is accepted is what it states.

An input is made of parts, one for each file (of a manifest, delta or signatures the body: the envelope around it is
made here, so that no checksum stands in the way). :func:`mutated` changes one part, or one field of a message in it.
:mod:`tests.hostile.fuzz` lets atheris choose the changes by what code they reach.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from google.protobuf.message import DecodeError, Message
from safetensors.torch import load_file

import ckpt
from ckpt.deltas.codecs import chain, codec, moved
from ckpt.deltas.wire import MAX_GROWTH_BYTES
from ckpt.format.digests import sha256
from ckpt.format.names import INDEX_NAME
from ckpt.format.rules import check
from ckpt.format.wire import DELTA_MAGIC, MANIFEST_MAGIC, body_of, manifest_from_bytes
from ckpt.proto import checkpoint_pb2, delta_pb2, signatures_pb2
from ckpt.reading.payload import expected_headers
from ckpt.signatures.statements import SIGNATURES_MAGIC, statement_from_bytes
from tests.ckpt.equality import same
from tests.ckpt.signers import OLD, later, noon, signatures_of, trusting
from tests.hostile.edits import crc32_field, forge_files, mutate, put, save_moved, save_pair, save_victim
from tests.hostile.envelopes import message_in, sealed
from tests.hostile.lying_headers import HEADERS, save_plain

MutateBytes = Callable[[bytes, int], bytes]  # bytes, most bytes of the outcome → other bytes
_CODECS = ("raw", "sparse", "planes", "bsdiff", "contextual", "moved", "chain")
_BASE = bytes(range(256)) * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One harness: ``attack`` takes the parts of an input, and raises where something is wrong with us."""

    seeds: Sequence[tuple[bytes, ...]]
    attack: Callable[[Sequence[bytes]], object]
    messages: tuple[type[Message] | None, ...]  # what each part is the body of


def packed(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def unpacked(data: bytes, count: int) -> list[bytes]:
    """As many parts as are wanted, of whatever bytes."""
    stream = io.BytesIO(data)
    return [stream.read(int.from_bytes(stream.read(4), "little")) for _ in range(count)]


def mutated(target: Target, data: bytes, mutate_bytes: MutateBytes, *, seed: int, most: int) -> bytes:
    """Other bytes for one part, or another value for one field of its message."""
    choose = Random(seed)
    parts = unpacked(data, len(target.messages))
    index = 0 if choose.random() < 0.4 else choose.randrange(len(parts))  # the first part says the most
    kind = target.messages[index]
    if kind is not None and choose.random() < 0.6:
        with contextlib.suppress(DecodeError):
            message = kind.FromString(parts[index])
            mutate(message, choose)
            parts[index] = message.SerializeToString(deterministic=True)
    else:
        room = most - sum(len(part) + 4 for part in parts) + len(parts[index])
        parts[index] = mutate_bytes(parts[index], max(room, 1))
    made = packed(parts)
    return made if len(made) <= most else data  # more ends the fuzzer


def target(name: str, work: Path) -> Target:
    """A harness, with the sound files that it needs written into an empty folder."""
    return TARGETS[name](work)


# --- manifests -----------------------------------------------------------------------------------------------------


def _manifests(work: Path) -> Target:
    save_victim(work)
    seed = body_of((work / "victim" / "manifest.pb").read_bytes())
    return Target(seeds=[(seed,)], attack=_attack_manifest, messages=(checkpoint_pb2.Manifest,))


def _attack_manifest(parts: Sequence[bytes]) -> None:
    with contextlib.suppress(ckpt.CheckpointError):
        manifest = manifest_from_bytes(sealed(MANIFEST_MAGIC, parts[0]), "here")
        check(manifest)
        expected_headers(manifest)
        assert manifest.root != manifest.seal


# --- checkpoints ---------------------------------------------------------------------------------------------------


class _Files:
    """A folder as parts of an input: the bodies of what is sealed first, then the other files by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sealed = [name for name in ("manifest.pb", "signatures.pb") if (folder / name).exists()]
        paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        self.plain = sorted(set(paths) - set(self.sealed))
        bodies = (body_of((folder / name).read_bytes()) for name in self.sealed)
        self.parts = (*bodies, *((folder / name).read_bytes() for name in self.plain))
        kinds = {"manifest.pb": checkpoint_pb2.Manifest, "signatures.pb": signatures_pb2.Signatures}
        self.messages = (*(kinds[name] for name in self.sealed), *(None for _ in self.plain))

    def write(self, parts: Sequence[bytes]) -> None:
        magics = {"manifest.pb": MANIFEST_MAGIC, "signatures.pb": SIGNATURES_MAGIC}
        named = zip((*self.sealed, *self.plain), parts, strict=True)
        for name, part in named:
            (self.folder / name).write_bytes(sealed(magics[name], part) if name in magics else part)


def _checkpoints(work: Path) -> Target:
    """Its last part is one byte that says whether the files are made to fit the manifest."""
    save_victim(work)
    files = _Files(work / "victim")

    def attack(parts: Sequence[bytes]) -> None:
        files.write(parts[:-1])
        if parts[-1][:1] == b"f":
            with contextlib.suppress(ckpt.FormatError, IndexError, KeyError, OSError, ValueError):
                forge_files(files.folder)
        for read in (_load, ckpt.verify, ckpt.inspect, lambda path: ckpt.load(path, verify="none")):
            with contextlib.suppress(ckpt.CheckpointError):
                read(files.folder)

    seeds = [(*files.parts, b"-"), (*files.parts, b"f")]
    return Target(seeds=seeds, attack=attack, messages=(*files.messages, None))


def _load(folder: Path) -> None:
    """What SHA-256 has proved to be there, ``verify`` finds, too."""
    ckpt.load(folder, verify="sha256")
    attached = {item.path for item in ckpt.read_manifest(folder).attachments}
    faults = ckpt.verify(folder).faults
    assert {fault.facts.get("file") for fault in faults} <= {*attached, "signatures.pb"}, faults


def _trusted(work: Path) -> Target:
    """Of a signed checkpoint, whatever is changed: it is refused, or what was signed is read bit by bit."""
    state = {"w": torch.arange(6.0), "v": torch.tensor([1, 2]), "odd": torch.arange(9.0)[::2], "n": [3, "x"]}
    (work / "a").write_text("attached")
    who = ckpt.signer(OLD, line="x", now=noon, not_after=later(days=1))
    seal = ckpt.save(state, work / "c", sign=who, attachments={"a": work / "a"}, metadata={"k": "v"}).seal
    files = _Files(work / "c")

    def attack(parts: Sequence[bytes]) -> None:
        files.write(parts[:-1])
        if parts[-1][:1] == b"c":
            with contextlib.suppress(DecodeError, IndexError, OSError, ValueError):
                _follow_with_crcs(files.folder)
        with contextlib.suppress(ckpt.CheckpointError), ckpt.open(files.folder, trust=trusting(OLD)) as opened:
            assert opened.seal == seal
            assert same(ckpt.load(files.folder, trust=trusting(OLD)), state)
            assert opened.attachment("a").read_text() == "attached"

    seeds = [(*files.parts, b"-"), (*files.parts, b"c")]
    return Target(seeds=seeds, attack=attack, messages=(*files.messages, None))


def _follow_with_crcs(folder: Path) -> None:
    """Make the CRC-32s those of the bytes that are there, and the header digests those of the headers."""
    message = checkpoint_pb2.Manifest.FromString(body_of((folder / "manifest.pb").read_bytes()))
    for storage in message.storages:
        data = (folder / message.files[storage.file].name).read_bytes()
        put(storage, crc32=crc32_field(data[storage.offset : storage.offset + storage.size]))
    for record in message.files:
        put(record, header_sha256=sha256((folder / record.name).read_bytes()[: record.header_size]))
    (folder / "manifest.pb").write_bytes(sealed(MANIFEST_MAGIC, message.SerializeToString(deterministic=True)))


# --- signatures ----------------------------------------------------------------------------------------------------


def _signatures(work: Path) -> Target:
    """A list of signatures, and a statement that a trusted key has signed."""
    who = ckpt.signer(OLD, line="x", now=noon, not_after=later(days=1))
    seal = ckpt.save({"n": 1}, work / "c", sign=who).seal
    file = work / "c" / "signatures.pb"
    statement = signatures_of(work / "c").own[0].statement

    def attack(parts: Sequence[bytes]) -> None:
        with contextlib.suppress(ckpt.CheckpointError):
            statement_from_bytes(parts[1], "here")
        file.write_bytes(sealed(SIGNATURES_MAGIC, parts[0]))
        with contextlib.suppress(ckpt.CheckpointError):
            ckpt.inspect(work / "c")
        with contextlib.suppress(ckpt.CheckpointError):
            accepted = ckpt.verify(work / "c", trust=trusting(OLD)).accepted
            assert accepted is None or (accepted.subject, accepted.line) == (seal, "x")

    seeds = [(body_of(file.read_bytes()), statement)]
    return Target(seeds=seeds, attack=attack, messages=(signatures_pb2.Signatures, signatures_pb2.Statement))


# --- deltas --------------------------------------------------------------------------------------------------------


def _deltas(work: Path) -> Target:
    """Each frame's SHA-256 is made that of its bytes, so that decoders get to see them."""
    save_pair(work)
    folder = work / "delta"

    def attack(parts: Sequence[bytes]) -> None:
        (folder / "patch-00001.bin").write_bytes(parts[1])
        (folder / "delta.pb").write_bytes(sealed(DELTA_MAGIC, _with_digests(parts[0], parts[1])))
        try:
            made = ckpt.apply(work / "old", folder, work / "made")
        except ckpt.CheckpointError:
            assert not (work / "made").exists()
            return
        assert made.seal == ckpt.read_delta(folder).target_seal
        shutil.rmtree(work / "made")

    save_moved(work)
    seeds = [
        (message_in((made / "delta.pb").read_bytes()), (made / "patch-00001.bin").read_bytes())
        for made in (folder, work / "moved", work / "to-one", work / "chained")
    ]
    return Target(seeds=seeds, attack=attack, messages=(delta_pb2.Delta, None))


def _with_digests(body: bytes, patch: bytes) -> bytes:
    try:
        message = delta_pb2.Delta.FromString(body)
    except DecodeError:
        return body
    for operation in (*message.storages, *message.attachments):
        for frame in operation.frames:
            put(frame, sha256=sha256(patch[frame.patch_offset : frame.patch_offset + frame.encoded_size]))
    return message.SerializeToString(deterministic=True)


def _frames(_work: Path) -> Target:
    """A codec and a width in two bytes, and what is to be decoded."""
    new = bytes(reversed(_BASE))
    seeds = [
        (bytes([number, width]), bytes(codec(name).encode(memoryview(_BASE), memoryview(new), width=1 << width)))
        for number, name in enumerate(_CODECS)
        for width in range(4)
    ]
    seeds += [(bytes([_CODECS.index("moved"), width]), _moved(within, 1 << width)) for within in moved.WITHIN
              for width in range(4)]  # fmt: skip
    seeds += [(bytes([_CODECS.index("chain"), width]), _chain(1 << width)) for width in range(4)]
    return Target(seeds=seeds, attack=_attack_frame, messages=(None, None))


def _moved(within: str, width: int) -> bytes:
    """Three runs of the base in another order, something new between them."""
    runs = moved.Runs(*np.array([[0, 512, 768], [256, 256, 256], [512, 0, 768]]))
    gathered = moved.gathered(memoryview(_BASE), runs, len(_BASE))
    return moved.around(runs, within, codec(within).encode(memoryview(gathered), memoryview(_BASE), width=width))


def _chain(width: int) -> bytes:
    """A step by each other codec: all of the bytes, then a half of them."""
    steps = []
    for name in _CODECS[:-1]:
        for whole, start in ((True, 0), (False, 512)):
            part = memoryview(_BASE)[start:]
            read = memoryview(b"") if name == "raw" else part
            encoded = bytes(codec(name).encode(read, part, width=width))
            steps.append(
                chain.Step(codec=name, width=width, read_offset=start, read_size=len(read), offset=start,
                           size=len(part), whole=whole, encoded=encoded)
            )  # fmt: skip
    return chain.join(steps)


def _attack_frame(parts: Sequence[bytes]) -> None:
    choice = parts[0].ljust(2, b"\0")
    if len(parts[1]) > len(_BASE) + MAX_GROWTH_BYTES:
        return  # refused before a decoder is asked
    with contextlib.suppress(ValueError):
        decode = codec(_CODECS[choice[0] % len(_CODECS)]).decode
        decode(memoryview(_BASE), memoryview(parts[1]), width=1 << choice[1] % 4, size=len(_BASE))


# --- safetensors ---------------------------------------------------------------------------------------------------


def _headers(work: Path) -> Target:
    """A safetensors file in two parts; one that is adopted is one that safetensors reads alike."""
    save_plain(work)
    file = work / "x.safetensors"

    def seed() -> tuple[bytes, bytes]:
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        return data[8 : 8 + length], data[8 + length :]

    seeds = [seed()]
    for name in ("half a byte", "nothing of a huge size", "metadata that is no text"):
        HEADERS[name].tell(file)
        seeds.append(seed())

    def attack(parts: Sequence[bytes]) -> None:
        file.write_bytes(len(parts[0]).to_bytes(8, "little") + parts[0] + parts[1])
        with contextlib.suppress(ckpt.FormatError):
            ckpt.adopt(file)
            loaded = ckpt.load(file)
            file.with_name("x.safetensors.manifest.pb").unlink()
            assert same(loaded, load_file(file))

    return Target(seeds=seeds, attack=attack, messages=(None, None))


def _indexes(work: Path) -> Target:
    """The index of a folder with two files."""
    folder = work / "x"
    ckpt.save({"a": torch.ones(2), "b": torch.ones(3)}, folder, shard_bytes=1)
    (folder / "manifest.pb").unlink()
    seed = (folder / INDEX_NAME).read_bytes()

    def attack(parts: Sequence[bytes]) -> None:
        (folder / INDEX_NAME).write_bytes(parts[0])
        with contextlib.suppress(ckpt.FormatError, ckpt.CorruptFileError):
            ckpt.adopt(folder)
            assert ckpt.load(folder).keys() == json.loads(parts[0])["weight_map"].keys()
            (folder / "manifest.pb").unlink()

    return Target(seeds=[(seed,)], attack=attack, messages=(None,))


TARGETS: dict[str, Callable[[Path], Target]] = {
    "manifest": _manifests,
    "checkpoint": _checkpoints,
    "trusted": _trusted,
    "signatures": _signatures,
    "delta": _deltas,
    "frame": _frames,
    "header": _headers,
    "index": _indexes,
}
