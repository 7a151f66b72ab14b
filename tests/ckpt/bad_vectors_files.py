"""Bad conformance vectors that lie below or beside the manifest's own rules: envelopes, encodings, files, chunks.

Each is a change of a good vector's copy, with the stable word of what a reader finds.
"""

import os
from collections.abc import Callable
from pathlib import Path

from ckpt.format.digests import sha256
from ckpt.format.names import MANIFEST_NAME, SIGNATURES_NAME
from ckpt.proto import checkpoint_pb2, signatures_pb2
from ckpt.signatures.statements import SIGNATURES_MAGIC
from tests.ckpt.bad_vectors_manifests import DIGEST, Lie
from tests.ckpt.vector_states import CHECKPOINT, INDEX
from tests.hostile.edits import Edit, crc32_field, put, rewrite, rewrite_manifest, storage

Change = Callable[[bytes], bytes]


def changed(name: str, change: Change) -> Callable[[Path], object]:
    """A file of the checkpoint under other bytes; a name with a star is the only match."""

    def apply(folder: Path) -> None:
        (file,) = (folder / CHECKPOINT).glob(name)
        file.write_bytes(change(file.read_bytes()))

    return apply


def body(change: Change, name: str = MANIFEST_NAME) -> Callable[[Path], object]:
    """Another body, sealed with its own length and checksum."""

    def resealed(data: bytes) -> bytes:
        made = change(data[24:-32])
        return data[:16] + len(made).to_bytes(8, "little") + made + sha256(made)

    return changed(name, resealed)


def replaced(old: bytes, new: bytes) -> Change:
    """Once, where it stands first."""

    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return change


def at(position: int, new: bytes) -> Change:
    return lambda data: data[:position] + new + data[position + len(new) :]


def flipped(position: int) -> Change:
    def change(data: bytes) -> bytes:
        place = position % len(data)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return change


def doing(act: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something done to the checkpoint's folder."""
    return lambda folder: act(folder / CHECKPOINT)


def manifest(edit: Edit) -> Callable[[Path], object]:
    return doing(lambda folder: rewrite_manifest(folder, edit))


def signatures(edit: Edit) -> Callable[[Path], object]:
    return doing(lambda folder: rewrite(folder / SIGNATURES_NAME, signatures_pb2.Signatures(), SIGNATURES_MAGIC, edit))


def in_turn(*steps: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [step(folder) for step in steps]


def linked(folder: Path, name: str) -> None:
    """A file, or a folder, as a link to where it lies now, outside the checkpoint."""
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to("../" * name.count("/") + "../elsewhere")


def piped(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def as_folder(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    (folder / name / "inside").write_text("")


def rehash_header(folder: Path, change: Change) -> None:
    """Change the header of the weights file, and state the SHA-256 of the new one."""
    (file,) = folder.glob("weights-*")
    data = change(file.read_bytes())
    file.write_bytes(data)

    def adjust(message: checkpoint_pb2.Manifest) -> None:
        record = next(item for item in message.files if item.name == file.name)
        put(record, header_sha256=sha256(data[: record.header_size]))

    rewrite_manifest(folder, adjust)


def rehash_index(folder: Path, change: Change) -> None:
    data = change((folder / INDEX).read_bytes())
    (folder / INDEX).write_bytes(data)

    def adjust(message: checkpoint_pb2.Manifest) -> None:
        record = next(item for item in message.files if item.name == INDEX)
        put(record, size=len(data), header_size=len(data), header_sha256=sha256(data))

    rewrite_manifest(folder, adjust)


def forge_chunk(folder: Path) -> None:
    """Other bytes with a right CRC-32, which is none of the digests."""
    (file,) = folder.glob("weights-*")
    data = flipped(-1)(file.read_bytes())
    file.write_bytes(data)
    rewrite_manifest(folder, lambda message: put(message.storages[0], crc32=crc32_field(data[-8:])))


ENVELOPE = {
    "another-magic": ("bad-magic", "plain", changed(MANIFEST_NAME, flipped(0))),
    "an-envelope-of-version-2": ("unknown-version", "plain", changed(MANIFEST_NAME, at(15, b"\2"))),
    "no-bytes": ("truncated", "plain", changed(MANIFEST_NAME, lambda data: b"")),
    "a-byte-too-few": ("truncated", "plain", changed(MANIFEST_NAME, lambda data: data[:-1])),
    "a-byte-too-many": ("trailing-bytes", "plain", changed(MANIFEST_NAME, lambda data: data + b"\0")),
    "a-body-of-2-63": ("size-beyond-limit", "plain", changed(MANIFEST_NAME, at(16, bytes(7) + b"\x80"))),
    "a-flipped-bit-of-the-body": ("body-checksum", "plain", changed(MANIFEST_NAME, flipped(40))),
    "a-flipped-bit-of-the-checksum": ("body-checksum", "plain", changed(MANIFEST_NAME, flipped(-1))),
    "a-delta-as-a-checkpoint": ("bad-magic", "plain", changed(MANIFEST_NAME, at(9, b"dlta"))),
}

# Bodies of "mixed": the tensor "floats" has the shape 1a 02 02 03; "row" 1a 02 01 02, storage 7 at its end.
ENCODING = {
    "an-unknown-field": ("unknown-field", "mixed", body(lambda data: data + b"\x50\x01")),
    "an-unknown-field-in-an-entry": ("unknown-field", "mixed", body(replaced(b"\x3a\6", b"\x3a\x08\x18\1"))),
    "a-field-of-another-wire-type": ("unknown-field", "mixed", body(lambda data: data + b"\x4a\x01\x00")),
    "a-field-out-of-order": ("not-canonical", "mixed", body(lambda data: data[2:] + data[:2])),
    "a-field-twice": ("not-canonical", "mixed", body(lambda data: data[:2] + data)),
    "a-default-written": ("not-canonical", "mixed", body(lambda data: data + b"\x48\x00")),
    "a-number-in-needless-bytes": ("not-canonical", "mixed", body(lambda data: b"\x08\x81\x00" + data[2:])),
    "a-bool-of-2-on-the-wire": ("not-canonical", "mixed", body(lambda data: data + b"\x48\x02")),
    "a-version-beyond-32-bits": (
        "not-canonical",
        "mixed",
        body(lambda data: b"\x08\x81\x80\x80\x80\x10" + data[2:]),
    ),
    "a-list-not-packed": ("not-canonical", "mixed", body(replaced(b"\x1a\2\2\3", b"\x18\2\x18\3"))),
    "a-tag-in-needless-bytes": ("not-canonical", "mixed", body(lambda data: b"\x88\x00\x01" + data[2:])),
    "a-key-that-is-no-utf8": ("malformed-protobuf", "mixed", body(replaced(b"\x0a\1k", b"\x0a\1\xff"))),
    "a-field-cut-short": ("malformed-protobuf", "mixed", body(lambda data: data + b"\x42\x7f")),
    "a-number-cut-short": ("malformed-protobuf", "mixed", body(lambda data: data + b"\x48\x80")),
    "a-number-of-eleven-bytes": ("malformed-protobuf", "mixed", body(lambda data: data + b"\x48" + b"\xff" * 11)),
    "more-messages-than-2-22": ("count-beyond-limit", "mixed", body(lambda data: data + b"\x42\x00" * (1 << 22))),
    "a-group": ("malformed-protobuf", "mixed", body(lambda data: data + b"\x53\x54")),
    "field-0": ("malformed-protobuf", "mixed", body(lambda data: data + b"\x00\x01")),
}

FILES = {
    "no-manifest": ("no-manifest", "plain", doing(lambda folder: (folder / MANIFEST_NAME).unlink())),
    "a-missing-payload": ("missing-file", "plain", doing(lambda folder: next(folder.glob("weights-*")).unlink())),
    "a-missing-index": ("missing-file", "plain", doing(lambda folder: (folder / INDEX).unlink())),
    "a-missing-attachment": ("missing-file", "mixed", doing(lambda folder: (folder / "docs/b.txt").unlink())),
    "a-linked-manifest": ("not-a-file", "plain", doing(lambda folder: linked(folder, MANIFEST_NAME))),
    "a-linked-payload": (
        "not-a-file",
        "plain",
        doing(lambda folder: linked(folder, next(folder.glob("weights-*")).name)),
    ),
    "a-linked-attachment": ("not-a-file", "mixed", doing(lambda folder: linked(folder, "docs/a.txt"))),
    "a-link-on-the-way": ("not-a-file", "mixed", doing(lambda folder: linked(folder, "docs"))),
    "a-pipe": ("not-a-file", "plain", doing(lambda folder: piped(folder, next(folder.glob("weights-*")).name))),
    "a-folder-as-a-file": ("not-a-file", "plain", doing(lambda folder: as_folder(folder, INDEX))),
    "a-shorter-payload": ("file-size", "plain", changed("weights-*", lambda data: data[:-1])),
    "a-longer-payload": ("file-size", "plain", changed("weights-*", lambda data: data + b"\0")),
    "a-longer-attachment": ("file-size", "mixed", changed("docs/a.txt", lambda data: data + b"a")),
    "a-name-swapped-in-a-header": ("header-mismatch", "plain", changed("weights-*", replaced(b'"w"', b'"v"'))),
    "a-byte-hidden-in-the-padding": ("header-mismatch", "plain", changed("weights-*", at(4095, b"x"))),
    "a-header-swapped-and-hashed": (
        "header-mismatch",
        "plain",
        doing(lambda folder: rehash_header(folder, replaced(b'"w"', b'"v"'))),
    ),
    "a-padding-changed-and-hashed": (
        "header-mismatch",
        "plain",
        doing(lambda folder: rehash_header(folder, at(4095, b"\n"))),
    ),
    "an-index-swapped": ("header-mismatch", "plain", changed(INDEX, replaced(b'"w"', b'"v"'))),
    "an-index-swapped-and-hashed": (
        "header-mismatch",
        "plain",
        doing(lambda folder: rehash_index(folder, replaced(b'"w"', b'"v"'))),
    ),
    "another-header-digest": (
        "header-mismatch",
        "plain",
        manifest(lambda message: put(message.files[0], header_sha256=DIGEST)),
    ),
}

CHUNKS = {
    "a-flipped-bit": ("chunk-crc", "plain", changed("weights-*", flipped(-1))),
    "a-flipped-bit-of-the-second-chunk": ("chunk-crc", "two-chunks", changed("weights-*", flipped(-3))),
    "a-flipped-bit-of-an-attachment": ("chunk-crc", "mixed", changed("docs/b.txt", flipped(1))),
    "another-crc": (
        "chunk-crc",
        "plain",
        manifest(lambda message: put(message.storages[0], crc32=b"\7\0\0\0")),
    ),
    "another-sha256": ("chunk-sha256", "mixed", manifest(lambda message: put(storage(message, "ints"), sha256=DIGEST))),
    "bytes-forged-with-a-right-crc": ("chunk-sha256", "plain", doing(forge_chunk)),
    "another-sha256-of-an-attachment": (
        "chunk-sha256",
        "mixed",
        manifest(lambda message: put(message.attachments[0], sha256=DIGEST)),
    ),
    "the-manifest-of-another": (
        "root-mismatch",
        "plain",
        in_turn(
            manifest(lambda message: put(message.storages[0], crc32=crc32_field(bytes(8)), sha256=sha256(bytes(8)))),
            changed("weights-*", lambda data: data[:-8] + bytes(8)),
        ),
    ),
}

SIGNATURES = {
    "signatures-of-another-magic": ("bad-magic", "signed", changed(SIGNATURES_NAME, flipped(0))),
    "signatures-that-go-on": ("trailing-bytes", "signed", changed(SIGNATURES_NAME, lambda data: data + b"\0")),
    "signatures-with-a-flipped-bit": ("body-checksum", "signed", changed(SIGNATURES_NAME, flipped(40))),
    "signatures-with-an-unknown-field": (
        "unknown-field",
        "signed",
        body(lambda data: data + b"\x18\x01", SIGNATURES_NAME),
    ),
    "signatures-beyond-128-kib": (
        "size-beyond-limit",
        "signed",
        changed(SIGNATURES_NAME, lambda data: data + bytes(128 << 10)),
    ),
    "signatures-out-of-order": (
        "signature-list",
        "signed",
        signatures(lambda message: message.signatures.append(message.signatures[0])),
    ),
    "a-key-id-of-31-bytes": (
        "signature-list",
        "signed",
        signatures(lambda message: put(message.signatures[0], key_id=bytes(31))),
    ),
    "a-statement-of-no-bytes": (
        "signature-list",
        "signed",
        signatures(lambda message: put(message.signatures[0], statement=b"")),
    ),
    "a-signature-of-65-bytes": (
        "signature-list",
        "signed",
        signatures(lambda message: put(message.signatures[0], signature=bytes(65))),
    ),
    "65-signatures": (
        "signature-list",
        "signed",
        signatures(
            lambda message: put(
                message,
                signatures=[
                    signatures_pb2.Signature(key_id=bytes([index] * 32), statement=b"s", signature=bytes(64))
                    for index in range(65)
                ],
            )
        ),
    ),
    "signatures-of-a-target": (
        "signature-list",
        "signed",
        signatures(lambda message: message.target.append(message.signatures[0])),
    ),
    "linked-signatures": ("not-a-file", "signed", doing(lambda folder: linked(folder, SIGNATURES_NAME))),
}


def lies() -> dict[str, Lie]:
    return {**ENVELOPE, **ENCODING, **FILES, **CHUNKS, **SIGNATURES}
