"""Every lie there is a file for, by the kind of file; each can be looked at by hand.

    python -m tests.hostile.gallery gallery

writes each of them below the folder ``gallery``, with what it says about itself in ``gallery/index.tsv``.
"""

import argparse
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import Message

from ckpt.format.wire import DELTA_MAGIC, MANIFEST_MAGIC
from ckpt.proto import checkpoint_pb2, delta_pb2, signatures_pb2
from ckpt.signatures.statements import SIGNATURES_MAGIC
from tests.hostile import calls
from tests.hostile.bombs import BOMBS, save_nothing
from tests.hostile.edits import copied, rewrite, save_pair, save_victim
from tests.hostile.lies import Kind, Lie
from tests.hostile.lying_deltas import DELTAS, MESSAGES_OF_DELTAS
from tests.hostile.lying_envelopes import BODIES, ENCODINGS, ENVELOPES, PACKINGS, negative, unknown_inside
from tests.hostile.lying_folders import ATTACHED, DELTA_FOLDERS, FOLDERS
from tests.hostile.lying_headers import ADOPTED, HEADERS, INDEXES, save_adopted, save_indexed, save_plain
from tests.hostile.lying_imports import DCP, NPZ, TORCH, restated, save_dcp, save_npz, save_torch
from tests.hostile.lying_manifests import MANIFESTS, MESSAGES
from tests.hostile.lying_pieces import PIECES, save_pieces
from tests.hostile.lying_signatures import LISTS, SIGNATURES, save_signed


def told(prefix: str, lies: dict[str, Lie], tell: Callable[[Path, Lie], object]) -> dict[str, Lie]:
    """The same lies, told of a path in another way."""
    return {f"{prefix}: {name}": replace(lie, tell=lambda path, lie=lie: tell(path, lie)) for name, lie in lies.items()}


def resealed(prefix: str, lies: dict[str, Lie], name: str, message: type[Message], magic: bytes) -> dict[str, Lie]:
    """Lies about a message, told of the folder it lies in: its file is parsed, edited and sealed again."""
    return told(prefix, lies, lambda path, lie: rewrite(calls.beside(path, name), message(), magic, lie.tell))


def enveloped(prefix: str, lies: dict[str, Lie], name: str) -> dict[str, Lie]:
    """Lies about the bytes of a file, told of the folder it lies in."""
    return told(prefix, lies, lambda path, lie: lie.tell(calls.beside(path, name)))


def hidden(*places: str) -> dict[str, Lie]:
    return {name: Lie(edit, "found unknown fields") for name, edit in unknown_inside(*places).items()}


_MANIFEST = ("manifest.pb", checkpoint_pb2.Manifest, MANIFEST_MAGIC)
_DELTA = ("delta.pb", delta_pb2.Delta, DELTA_MAGIC)
_SIGNATURES = ("signatures.pb", signatures_pb2.Signatures, SIGNATURES_MAGIC)
_NO_ENUM = {"an enumerator of -1": Lie(negative("state"), "found kind -1, expected 1 … 19")}
_NO_ACTION = {"an enumerator of -1": Lie(negative("storages"), "found -1, expected 1 … 3")}

KINDS = {
    "checkpoint": Kind(
        name="victim",
        make=calls.save_beside(save_victim, calls.save_helpers),
        lies={
            **{
                key: lie
                for prefix, lies in MANIFESTS.items()
                for key, lie in resealed(prefix, lies, *_MANIFEST).items()
            },
            **resealed("message", hidden(*MESSAGES) | _NO_ENUM, *_MANIFEST),
            **enveloped("envelope", ENVELOPES, "manifest.pb"),
            **enveloped("body", BODIES | ENCODINGS, "manifest.pb"),
            **FOLDERS,
        },
        calls=calls.CHECKPOINT,
    ),
    "attachment": Kind(
        name="victim", make=calls.save_beside(save_victim, calls.save_helpers), lies=ATTACHED, calls=calls.ATTACHMENT
    ),
    "pieces": Kind(
        name="victim",
        make=save_pieces,
        lies=resealed("piece", PIECES | hidden("pieces"), *_MANIFEST),
        calls=calls.READING,
    ),
    "adopted": Kind(
        name="x.safetensors", make=save_adopted, lies=resealed("manifest", ADOPTED, *_MANIFEST), calls=calls.ADOPTED
    ),
    "header": Kind(
        name="x.safetensors", make=calls.save_beside(save_plain, calls.save_sound), lies=HEADERS, calls=calls.HEADER
    ),
    "index": Kind(name="x", make=calls.save_beside(save_indexed, calls.save_sound), lies=INDEXES, calls=calls.INDEX),
    "signatures": Kind(
        name="victim",
        make=save_signed,
        lies={
            **resealed("list", LISTS | hidden("signatures"), *_SIGNATURES),
            **enveloped("envelope", ENVELOPES, "signatures.pb"),
            **enveloped("body", BODIES, "signatures.pb"),
            **SIGNATURES,
        },
        calls=calls.SIGNATURES,
    ),
    "delta": Kind(
        name="delta",
        make=save_pair,
        lies={
            **resealed("delta", DELTAS, *_DELTA),
            **resealed("message", hidden(*MESSAGES_OF_DELTAS) | _NO_ACTION, *_DELTA),
            **enveloped("envelope", ENVELOPES, "delta.pb"),
            **enveloped("packing", PACKINGS, "delta.pb"),
            **enveloped("body", BODIES | ENCODINGS, "delta.pb"),
            **DELTA_FOLDERS,
        },
        calls=calls.DELTA,
    ),
    "torch": Kind(name="x.pt", make=save_torch, lies=TORCH, calls=calls.TORCH),
    "npz": Kind(name="x.npz", make=save_npz, lies=NPZ, calls=calls.NPZ),
    "dcp": Kind(
        name="x", make=save_dcp, lies=told("metadata", DCP, lambda path, lie: restated(lie.tell)(path)), calls=calls.DCP
    ),
    "bomb": Kind(name="x", make=save_nothing, lies=BOMBS, calls=calls.BOMB),
}


def write(out: Path, kinds: Collection[str] = tuple(KINDS)) -> None:
    """Write every lie of some kinds, each in a folder of its own."""
    rows = ["kind\tlie\tpath\tclass\tmessage"]
    for kind_name in kinds:
        kind = KINDS[kind_name]
        sound = out / kind_name / "sound"
        sound.mkdir(parents=True)
        kind.make(sound)
        for number, (name, lie) in enumerate(kind.lies.items()):
            place = copied(sound, out / kind_name / f"{number:03d}")
            lie.tell(place / kind.name)
            path = (place / kind.name).relative_to(out)
            rows.append(f"{kind_name}\t{name}\t{path}\t{lie.error.__name__}\t{lie.says}")
    (out / "index.tsv").write_text("\n".join(rows) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a folder to be")
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
