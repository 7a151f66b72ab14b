"""Two readers that share no line, ``ckpt`` and the one beside the format's page, give one answer.

The conformance vectors are also the golden files of format version 1: what a release has written, later ones read.
"""

import contextlib
import json
import os
import re
import struct
import subprocess
import sys
import textwrap
from datetime import datetime
from math import prod
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import ckpt
import treering_reader
from ckpt.__main__ import main as ckpt_command
from ckpt.format.boxes import Box
from ckpt.format.digests import sha256
from ckpt.format.dtypes import BY_NAME, BY_SAFETENSORS
from ckpt.format.names import MANIFEST_NAME
from ckpt.format.state import NUMPY_DTYPES
from ckpt.format.wire import body_of
from ckpt.proto.checkpoint_pb2 import Manifest
from tests.ckpt.make_vectors import AS_EDITS, LIES, make
from tests.ckpt.pieces import save_in_pieces
from tests.ckpt.signed_vectors import ACCEPTED, TRUSTS, key_files
from tests.ckpt.signers import NOON, OLD, edit_statement
from tests.ckpt.strategies import DTYPES, states, tilings
from tests.ckpt.vector_answers import answer, said, trust_of
from tests.ckpt.vector_states import GOOD as MAKERS
from tests.ckpt.vector_states import counted
from tests.ckpt.vectors import GOOD, KEYS, VECTORS, derived, expected, good_names, unpacked
from tests.hostile.edits import forge_files, mutate, rewrite_manifest

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

FORMATS = VECTORS.parents[1]
TABLE = derived()
BAD = {name: vector["expected"]["fault"] for name, vector in TABLE.items() if "fault" in vector["expected"]}
TRUSTED = {name: vector["expected"][ACCEPTED] for name, vector in TABLE.items() if ACCEPTED in vector["expected"]}
# What ``ckpt`` raises where the other reader says one of these words; for all other words, FormatError.
RAISED: dict[str, type[ckpt.CheckpointError]] = {
    "unknown-version": ckpt.VersionError,
    "no-manifest": ckpt.NotACheckpointError,
    "missing-file": ckpt.CorruptFileError,
    "not-a-file": ckpt.CorruptFileError,
    "file-size": ckpt.CorruptFileError,
    "header-mismatch": ckpt.CorruptFileError,
    "foreign-header": ckpt.CorruptFileError,
    "chunk-crc": ckpt.CorruptChunkError,
    "chunk-sha256": ckpt.CorruptChunkError,
    "root-mismatch": ckpt.RootMismatchError,
    "key-file": ckpt.KeyFileError,
    "unsigned": ckpt.UnsignedError,
    "untrusted-key": ckpt.UntrustedKeyError,
    "bad-signature": ckpt.BadSignatureError,
    "wrong-kind": ckpt.WrongKindError,
    "wrong-subject": ckpt.WrongSubjectError,
    "wrong-line": ckpt.WrongLineError,
    "expired-signature": ckpt.ExpiredSignatureError,
}
LEVELS: tuple[Literal["crc32", "sha256"], ...] = ("crc32", "sha256")  # CRCs are outside the digests
UNPACK = {"float32": "f", "int32": "i"}


def stated(name: str) -> dict[str, Any]:
    """What the vector's file says of a good one, without its path."""
    found = dict(TABLE[name]["expected"] if name in TABLE else expected(name))
    found.pop("path", None)
    return found


def without_values(found: dict[str, Any]) -> dict[str, Any]:
    tensors = {
        name: {key: value for key, value in row.items() if key != "values"} for name, row in found["tensors"].items()
    }
    return found | {"tensors": tensors}


def fault_of_ckpt(path: Path, vector: dict[str, Any]) -> type[ckpt.CheckpointError]:
    """What it finds at the first level that finds anything; with trust there is one."""
    for level in ("sha256",) if "trust" in vector else LEVELS:
        try:
            ckpt.verify(path, verify=level, root=vector.get("root"), trust=trust_of(vector)).raise_on_fault()
        except ckpt.CheckpointError as fault:
            return type(fault)
    raise AssertionError(f"{path} is sound to ckpt")


@pytest.mark.parametrize("name", [*good_names(), *AS_EDITS])
def test_both_readers_say_of_a_golden_file_what_it_states(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path / "v", TABLE)

    found = treering_reader.read(str(path))

    values = [name for name, row in stated(name)["tensors"].items() if "values" in row]
    assert answer(path, values=values) == stated(name)
    assert treering_reader.rendered(found) == without_values(stated(name))
    for tensor in values:
        content, row = found.tensors[tensor].content, stated(name)["tensors"][tensor]
        code = UNPACK[row["dtype"]]
        assert list(struct.unpack(f"<{len(content) // 4}{code}", content)) == flat(row["values"])


def flat(values: Any) -> list[Any]:
    return [item for value in values for item in flat(value)] if isinstance(values, list) else [values]


@pytest.mark.parametrize("name", BAD)
def test_both_readers_refuse_a_lie_for_its_reason(name: str, tmp_path: Path) -> None:
    path, vector = unpacked(name, tmp_path / "v", TABLE), TABLE[name]

    with pytest.raises(treering_reader.FaultError) as fault:
        treering_reader.read(str(path), root=vector.get("root"), trust=trust_of_the_other(vector))
    raised = fault_of_ckpt(path, vector)

    assert fault.value.kind == BAD[name], fault.value
    assert raised is RAISED.get(BAD[name], ckpt.FormatError)


def trust_of_the_other(vector: dict[str, Any]) -> treering_reader.Trust | None:
    if "trust" not in vector:
        return None
    named = vector["trust"]
    keys = [treering_reader.public_key(str(KEYS / f"{key}.pub.pem")) for key in named["keys"]]
    return treering_reader.Trust(keys=keys, line=named["line"], at=datetime.fromisoformat(named["at"]))


@pytest.mark.parametrize("name", TRUSTED)
def test_both_readers_accept_the_statement_of_a_trusted_key(name: str, tmp_path: Path) -> None:
    path, vector = unpacked(name, tmp_path / "v", TABLE), TABLE[name]

    report = ckpt.verify(path, trust=trust_of(vector))
    found = treering_reader.read(str(path), trust=trust_of_the_other(vector))

    assert report.ok
    assert report.accepted is not None
    assert said(report.accepted) == TRUSTED[name]
    assert treering_reader.rendered(found)["accepted"] == TRUSTED[name]


def test_without_trust_both_readers_verify_no_signature(tmp_path: Path) -> None:
    path = unpacked("a-malleable-signature", tmp_path / "v", TABLE)

    assert ckpt.verify(path).accepted is None
    assert treering_reader.read(str(path)).accepted is None


def test_the_other_reader_opens_no_payload_of_what_is_not_signed(tmp_path: Path) -> None:
    path = unpacked("no-signatures", tmp_path / "v", TABLE)
    for file in path.glob("weights-*"):
        file.unlink()

    with pytest.raises(treering_reader.FaultError, match="unsigned"):
        treering_reader.read(str(path), trust=trust_of_the_other(TABLE["no-signatures"]))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), signed=st.booleans(), line=st.sampled_from([None, "mnist", ""]))
def test_of_any_mutated_statement_both_readers_say_the_same(
    seed: int, signed: bool, line: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = unpacked("signed", tmp_path_factory.mktemp("mutated") / "v", TABLE)
    edit_statement(path, lambda statement: mutate(statement, Random(seed)), key=OLD if signed else None)
    vector = {"trust": {"keys": ["old", "new"], "line": line, "at": NOON.isoformat()}}

    report = ckpt.verify(path, trust=trust_of(vector))
    try:
        found = treering_reader.rendered(treering_reader.read(str(path), trust=trust_of_the_other(vector)))["accepted"]
    except treering_reader.FaultError as fault:
        found = RAISED.get(fault.kind, ckpt.FormatError)

    assert found == (said(report.accepted) if report.accepted else type(report.faults[0]))


@pytest.mark.parametrize("name", MAKERS)
def test_the_writer_still_writes_the_bytes_of_its_golden_file(name: str, tmp_path: Path) -> None:
    """All bytes but those of ``producer``, which names the versions that wrote them."""
    (tmp_path / "now").mkdir()
    unpacked(name, tmp_path / "then", TABLE)

    found = make(name, tmp_path / "now")

    assert found["root"] == stated(name)["root"]
    assert found["seal"] == stated(name)["seal"]
    assert contents(tmp_path / "now") == contents(tmp_path / "then")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, of a manifest those of its body without ``producer``."""
    return {str(file.relative_to(folder)): plain(file) for file in sorted(folder.rglob("*")) if file.is_file()}


def plain(file: Path) -> bytes:
    if not file.name.endswith(MANIFEST_NAME):
        return file.read_bytes()
    message = Manifest.FromString(body_of(file.read_bytes()))
    message.ClearField("producer")
    return message.SerializeToString(deterministic=True)


def test_every_lie_of_the_scripts_has_a_vector_with_its_word() -> None:
    assert {name: word for name, (word, _, _) in LIES.items()} == BAD | dict.fromkeys(TRUSTED, ACCEPTED)
    assert {name: vector["trust"] for name, vector in TABLE.items() if "trust" in vector} == TRUSTS
    assert {file.name: file.read_bytes() for file in KEYS.iterdir()} == key_files()
    assert set(good_names()) | set(AS_EDITS) == set(MAKERS)


def test_the_page_of_the_vectors_lists_every_word_and_what_ckpt_raises() -> None:
    text = (VECTORS.parent / "README.md").read_text()

    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| `(\w+Error)` \|", text, re.MULTILINE))

    assert rows == {word: RAISED.get(word, ckpt.FormatError).__name__ for word in BAD.values()}


def test_the_headers_that_the_format_page_shows_are_those_of_a_vector() -> None:
    page = (FORMATS / "checkpoint.md").read_text()
    folder = GOOD / "plain" / "checkpoint"
    (weights,) = folder.glob("weights-*")
    index = (folder / "model.safetensors.index.json").read_text()

    assert f"\n    {weights.read_bytes()[8:4096].decode().rstrip()}\n" in page
    assert textwrap.indent(index, "    ") in page


def test_the_vectors_weigh_little() -> None:
    assert sum(file.stat().st_size for file in VECTORS.rglob("*") if file.is_file()) < 325_000


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=states, shard_bytes=st.sampled_from([64, 1 << 20]))
def test_any_state_that_ckpt_saved_the_other_reader_reads(
    state: object, shard_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("state") / "c"
    try:
        ckpt.save(state, path, shard_bytes=shard_bytes)
    except ckpt.UnsupportedStateError:  # {0: t, "0": t}: two tensors of one name
        reject()

    assert treering_reader.rendered(treering_reader.read(str(path))) == answer(path)


@settings(max_examples=50, deadline=None)
@given(tiling=tilings(), dtype=st.sampled_from(DTYPES))
def test_any_tensor_in_pieces_that_ckpt_saved_the_other_reader_reads(
    tiling: tuple[tuple[int, ...], list[Box]], dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape, boxes = tiling
    path = tmp_path_factory.mktemp("pieces") / "c"

    save_in_pieces({"w": counted(dtype, prod(shape)).reshape(shape), "step": 1}, path, {"w": boxes})

    assert treering_reader.rendered(treering_reader.read(str(path))) == answer(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    base=st.sampled_from(["mixed", "kinds", "numpy", "views", "tied", "empty", "shards", "pieces"]),
    seed=st.integers(0, 2**32),
    forged=st.booleans(),
)
def test_of_any_mutated_manifest_both_readers_say_the_same(
    base: str, seed: int, forged: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = unpacked(base, tmp_path_factory.mktemp("mutated") / "v", TABLE)
    rewrite_manifest(path, lambda message: mutate(message, Random(seed)))
    if forged:
        with contextlib.suppress(ckpt.FormatError, LookupError, OSError):  # of what no header can be derived from
            forge_files(path)

    assert root_of_the_other(path) == root_of_ckpt(path)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=st.sampled_from(good_names()), sealed=st.booleans(), data=st.data())
def test_of_any_changed_file_both_readers_say_the_same(
    base: str, sealed: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Some bytes taken out and others put in; with ``sealed`` under a right length and checksum."""
    path = unpacked(base, tmp_path_factory.mktemp("changed") / "v", TABLE)
    files = sorted(file for file in path.parent.rglob("*.pb" if sealed else "*") if file.is_file())
    file = data.draw(st.sampled_from(files))
    content = file.read_bytes()
    inner = content[24:-32] if sealed else content
    start = data.draw(st.integers(0, len(inner)))
    inner = inner[:start] + data.draw(st.binary(max_size=3)) + inner[start + data.draw(st.integers(0, 3)) :]
    file.write_bytes(content[:16] + len(inner).to_bytes(8, "little") + inner + sha256(inner) if sealed else inner)

    assert root_of_the_other(path) == root_of_ckpt(path)


def root_of_the_other(path: Path) -> str | None:
    """The root that the other reader finds; None where it refuses the checkpoint."""
    try:
        return treering_reader.read(str(path)).root
    except treering_reader.FaultError:
        return None


def root_of_ckpt(path: Path) -> str | None:
    """The root where every level of verification is content."""
    reports = [ckpt.verify(path, verify=level) for level in LEVELS]
    return reports[0].root if all(reports) else None


def test_both_readers_know_the_same_dtypes() -> None:
    from treering_reader import dtypes

    assert {name: row.size_bytes for name, row in BY_NAME.items()} == dtypes.SIZES
    assert {name: row.safetensors for name, row in BY_NAME.items() if row.safetensors} == dtypes.SAFETENSORS
    assert {code: row.name for code, row in BY_SAFETENSORS.items()} == dtypes.ADOPTED
    assert set(dtypes.NUMPY) == NUMPY_DTYPES


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with no package but the standard library in reach, from another folder."""
    command = [sys.executable, "-E", "-s", "-S", str(FORMATS / "reader.py"), *arguments]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


def test_the_reader_runs_from_anywhere_with_the_standard_library_alone() -> None:
    path = GOOD / "plain" / "checkpoint"

    told, listed = run(str(path)), run(str(path), "--json")

    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"root         {stated('plain')['root']}\n")
    assert json.loads(listed.stdout) == without_values(stated("plain"))


def test_the_reader_spells_out_what_an_encoding_lacks() -> None:
    command = [sys.executable, "-S", str(FORMATS / "reader.py"), str(GOOD / "attachments" / "checkpoint")]
    told = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"})

    assert b"attachment   'deep/er/\\xfc.bin', 3 bytes" in told.stdout


def test_the_reader_names_a_fault_in_one_line_and_exits_with_1(tmp_path: Path) -> None:
    path = unpacked("a-flipped-bit", tmp_path / "v", TABLE)

    told = run(str(path))

    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("chunk-crc: chunk 0 of storage 0")
    assert told.stderr.count("\n") == 1


def test_the_reader_does_not_write_out_a_view_that_repeats_its_elements_into_terabytes(tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(1).expand(1 << 40)}, tmp_path / "c")

    told = run(str(tmp_path / "c"), "--json")

    assert json.loads(told.stdout)["tensors"]["w"]["sha256"] is None


def test_the_reader_refuses_another_root_than_the_one_that_was_asked_for() -> None:
    told = run(str(GOOD / "plain" / "checkpoint"), "--root", stated("tied")["root"])

    assert told.returncode == 1
    assert told.stderr.startswith("root-mismatch: ")


@pytest.mark.parametrize("name", ["signed-by-a-trusted-key", "signed-by-a-foreign-key", "a-signature-that-expired"])
def test_both_commands_exit_alike_and_name_the_fault(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unpacked(name, tmp_path / "v", TABLE)
    (key,) = TABLE[name]["trust"]["keys"]
    asked = [str(path), "--trust", str(KEYS / f"{key}.pub.pem"), "--line", "mnist"]

    told = run(*asked, "--json")
    code = ckpt_command(["verify", *asked, "--json"])

    ours = json.loads(capsys.readouterr().out)
    assert told.returncode == code == int(name in BAD)
    if name in BAD:
        assert told.stderr.startswith(f"{BAD[name]}: ")
        assert ours["faults"][0]["error"] == RAISED[BAD[name]].__name__
    else:
        assert json.loads(told.stdout)["accepted"]["key_id"] == ours["accepted"]["key_id"]


def test_the_reader_takes_the_time_that_is_given(tmp_path: Path) -> None:
    path, key = GOOD / "signed" / "checkpoint", str(KEYS / "new.pub.pem")

    good, over = (run(str(path), "--trust", key, "--at", f"2026-07-0{day}T12:00") for day in (2, 3))

    assert (good.returncode, over.returncode) == (0, 1)
    assert f"verified: by {TRUSTED['signed-until-this-moment']['key_id']} for line 'mnist'" in good.stdout
    assert over.stderr.startswith("expired-signature: good until 2026-07-02 12:00:00+00:00")


@pytest.mark.parametrize("option", [["--line", "mnist"], ["--at", "2026-07-01"], ["--trust", "x", "--at", "noon"]])
def test_the_reader_refuses_options_that_make_no_sense(option: list[str]) -> None:
    assert run(str(GOOD / "signed" / "checkpoint"), *option).returncode == 2


def test_the_reader_says_when_its_answer_was_not_written_and_nothing_to_a_reader_that_has_gone() -> None:
    command = [sys.executable, "-S", str(FORMATS / "reader.py"), str(GOOD / "plain" / "checkpoint")]
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    with open("/dev/full", "wb") as full:
        unwritten = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)

    assert (gone.returncode, gone.stderr) == (1, b"")
    assert unwritten.returncode == 1
    assert unwritten.stderr == b"[Errno 28] No space left on device: the answer was not written\n"
