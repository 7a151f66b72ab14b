"""Deltas that are edited and sealed again with a right checksum."""

import ckpt
from ckpt.deltas.delta import Action
from ckpt.proto.delta_pb2 import Delta, Frame, Operation
from tests.hostile.edits import put, tensor
from tests.hostile.lies import Lie, Look

HUGE = 2**63
DIGEST = b"\7" * 32


def operation(message: Delta, name: str) -> Operation:
    return message.storages[tensor(message.target, name).storage]


def frame(message: Delta, name: str, number: int = 0) -> Frame:
    return operation(message, name).frames[number]


DELTAS: dict[str, Lie] = {
    "an unknown version": Lie(lambda d: put(d, format_version=9), "found 9, expected 1", ckpt.VersionError),
    "an unknown version of the target": Lie(
        lambda d: put(d.target, format_version=9), "found 9, expected 1", ckpt.VersionError
    ),
    "half a root": Lie(lambda d: put(d, base_root=DIGEST[:9]), "found 9 bytes, expected 32"),
    "another base": Lie(
        lambda d: put(d, base_root=DIGEST),
        "the base has root",
        ckpt.WrongBaseError,
        found_by=Look.SHA256,
    ),
    "another target root": Lie(
        lambda d: put(d, target_root=DIGEST),
        "expected sha256:0707",
        found_by=Look.SHA256,
    ),
    "another target seal": Lie(
        lambda d: put(d, target_seal=DIGEST),
        "expected sha256:0707",
        found_by=Look.SHA256,
    ),
    "an operation less": Lie(lambda d: d.storages.pop(), "found 4 operations, expected 5, no files"),
    "an operation too many": Lie(lambda d: d.attachments.add(action=Action.COPY), "found 3 operations, expected 2"),
    "an unknown action": Lie(lambda d: put(d.storages[0], action=9), "found 9, expected 1 … 3"),
    "a base out of range": Lie(
        lambda d: put(operation(d, "same"), base=99), "found base 99, expected less than 5", found_by=Look.SHA256
    ),
    "a base of 2^31": Lie(
        lambda d: put(operation(d, "same"), base=2**31),
        "found base 2147483648, expected less than 5",
        found_by=Look.SHA256,
    ),
    "another base storage": Lie(
        lambda d: put(operation(d, "sparse"), base=0),
        "expected a frame where the base has no such chunk",
        found_by=Look.SHA256,
    ),
    "new content with a base": Lie(
        lambda d: put(operation(d, "fresh"), base=1), "found base 1 of new content, expected none"
    ),
    "a copy with frames": Lie(
        lambda d: operation(d, "same").frames.append(frame(d, "dense")),
        "found 400 bytes, 1 frames, expected a copy without frames",
    ),
    "a copy with digests": Lie(
        lambda d: put(d.target.storages[tensor(d.target, "same").storage], crc32=b"\1\0\0\0", sha256=DIGEST),
        "found a copy of 400 bytes, expected 400 bytes, no digests",
        found_by=Look.SHA256,
    ),
    "a copy with half the digests": Lie(
        lambda d: put(d.target.storages[tensor(d.target, "same").storage], sha256=DIGEST),
        "expected 1 chunks of each for 400 bytes",
    ),
    "a copy of another size": Lie(
        lambda d: put(d.target.storages[tensor(d.target, "same").storage], size=8),
        "found a copy of 400 bytes, expected 8 bytes, no digests",
        found_by=Look.SHA256,
    ),
    "a target with files": Lie(
        lambda d: d.target.files.add(name="weights-00001-00000000.safetensors"),
        "found 5 operations, expected 5, no files",
    ),
    "a target with places": Lie(
        lambda d: put(d.target.storages[0], offset=8), "expected none: the target's files are written anew"
    ),
    "a frame less": Lie(lambda d: operation(d, "sparse").frames.pop(), "expected frames end to end in their patch"),
    "a frame twice": Lie(
        lambda d: operation(d, "sparse").frames.append(frame(d, "sparse")),
        "expected frames that ascend without overlap",
    ),
    "a frame off a chunk's boundary": Lie(
        lambda d: put(frame(d, "sparse"), offset=7), "expected an offset on a chunk's boundary"
    ),
    "a frame beyond its storage": Lie(
        lambda d: put(frame(d, "sparse"), offset=2**30),
        "found 151424 bytes by 'planes', expected bytes inside the target",
    ),
    "a frame at 2^63": Lie(
        lambda d: put(frame(d, "sparse"), offset=HUGE),
        "found 151424 bytes by 'planes', expected bytes inside the target",
    ),
    "a frame of 2^63 bytes": Lie(lambda d: put(frame(d, "sparse"), size=HUGE), "expected bytes inside the target"),
    "a frame of no bytes": Lie(
        lambda d: put(frame(d, "sparse"), size=0), "found 0 bytes by 'planes', expected bytes inside the target"
    ),
    "a frame that ends inside a chunk": Lie(
        lambda d: put(frame(d, "sparse"), size=1000, base_size=1000),
        "found 1000 bytes by 'planes', expected whole chunks",
    ),
    "a base run beyond the base": Lie(
        lambda d: put(frame(d, "table"), base_offset=2**20),
        "found a base of 3200 bytes, expected 1051776",
        ckpt.CorruptFrameError,
        found_by=Look.SHA256,
    ),
    "a base run of 2^63": Lie(
        lambda d: put(frame(d, "table"), base_size=HUGE), "expected a base of at most 16777216 bytes"
    ),
    "a base run of another size": Lie(
        lambda d: put(frame(d, "dense"), base_size=8), "expected as much of the base where it is reversible"
    ),
    "a base run of nothing, somewhere": Lie(
        lambda d: put(frame(d, "fresh"), base_offset=8), "expected no place in a base that is not read"
    ),
    "a width of 0": Lie(lambda d: put(frame(d, "sparse"), width=0), "expected a width of 1, 2, 4, 8 and a SHA-256"),
    "a width of 3": Lie(lambda d: put(frame(d, "sparse"), width=3), "expected a width of 1, 2, 4, 8 and a SHA-256"),
    "another width": Lie(
        lambda d: put(frame(d, "dense"), width=8), "expected 4000 bytes", ckpt.CorruptFrameError, found_by=Look.SHA256
    ),
    "an unknown codec": Lie(
        lambda d: put(frame(d, "sparse"), codec="pickle"),
        "found 'pickle', expected one of contextual, sparse, planes, moved, bsdiff, raw, chain",
    ),
    "another codec": Lie(lambda d: put(frame(d, "sparse"), codec="raw"), "expected what its codec says of reversing"),
    "a frame that claims to be reversible": Lie(
        lambda d: put(frame(d, "fresh"), reversible=True), "expected what its codec says of reversing"
    ),
    "a frame that claims not to be": Lie(
        lambda d: put(frame(d, "sparse"), reversible=False), "expected what its codec says of reversing"
    ),
    "another frame's digest": Lie(
        lambda d: put(frame(d, "sparse"), sha256=frame(d, "dense").sha256),
        "the frame at byte",
        ckpt.CorruptFrameError,
        found_by=Look.SHA256,
    ),
    "half a digest": Lie(
        lambda d: put(frame(d, "sparse"), sha256=DIGEST[:3]), "expected a width of 1, 2, 4, 8 and a SHA-256"
    ),
    "a patch out of range": Lie(
        lambda d: put(frame(d, "sparse"), patch=5), "found 151424 bytes by 'planes', expected a patch of the table"
    ),
    "bytes beyond the patch": Lie(
        lambda d: put(frame(d, "sparse"), patch_offset=HUGE), "expected frames end to end in their patch"
    ),
    "encoded bytes beyond counting": Lie(
        lambda d: put(frame(d, "sparse"), encoded_size=2**40), "expected encoded bytes, hardly more than decoded"
    ),
    "no encoded bytes": Lie(
        lambda d: put(frame(d, "sparse"), encoded_size=0), "expected encoded bytes, hardly more than decoded"
    ),
    "two frames from the same bytes": Lie(
        lambda d: put(frame(d, "dense"), patch_offset=frame(d, "sparse").patch_offset),
        "expected frames end to end in their patch",
    ),
    "a patch with another name": Lie(
        lambda d: put(d.patches[0], name="../patch-00001.bin"), "found '../patch-00001.bin', expected 'patch-00001.bin'"
    ),
    "a longer patch": Lie(
        lambda d: put(d.patches[0], size=d.patches[0].size + 1),
        "found 'patch-00001.bin' of 1894 bytes, expected 1893, above 0",
    ),
    "a patch that no frame uses": Lie(
        lambda d: d.patches.add(name="patch-00002.bin", size=1),
        "found 'patch-00002.bin' of 1 bytes, expected 0, above 0",
    ),
    "an attachment upwards": Lie(
        lambda d: put(d.target.attachments[0], path="../evil"),
        "expected a relative, normalised POSIX path",
        found_by=Look.SHA256,
    ),
    "an attachment of another size": Lie(
        lambda d: put(d.target.attachments[0], size=3),
        "found a copy of 6300 bytes, expected 3 bytes, no digests",
        found_by=Look.SHA256,
    ),
    "a tensor of another shape": Lie(
        lambda d: put(tensor(d.target, "dense"), shape=[999]), "expected those alone", found_by=Look.SHA256
    ),
    "another state": Lie(
        lambda d: put(d.target.state[1], data=b"x"),
        "delta.target_root: found sha256:",
        found_by=Look.SHA256,
    ),
}

MESSAGES_OF_DELTAS = (
    "target",
    "target.storages",
    "target.tensors",
    "target.state",
    "target.attachments",
    "target.producer",
    "storages",
    "storages.frames",
    "attachments",
    "attachments.frames",
    "patches",
)
