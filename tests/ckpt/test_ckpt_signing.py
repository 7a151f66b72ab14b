"""Keys are made once, signatures come and go beside a checkpoint, and nothing is lost on the way."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from safetensors.torch import save_file

import ckpt
import treering_reader
from ckpt.format.digests import text
from ckpt.signatures.statements import MAX_SIGNATURES
from tests.ckpt.signers import FOREIGN, NEW, NOON, OLD, later, name_of, noon, signatures_of, trusting

STATE = {"w": torch.ones(9), "n": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ckpt.save(STATE, tmp_path / "c")
    return tmp_path / "c"


def _files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


# --- keys ---------------------------------------------------------------------------------------------------------


def test_a_pair_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    keys = ckpt.keygen(tmp_path / "team" / "release.pem")

    assert (keys.private, keys.public) == (tmp_path / "team" / "release.pem", tmp_path / "team" / "release.pub.pem")
    assert stat.S_IMODE(keys.private.stat().st_mode) == 0o600
    assert keys.private.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert keys.public.read_text().startswith("-----BEGIN PUBLIC KEY-----")
    assert keys.key_id not in (ckpt.keygen(tmp_path / "other.pem").key_id, "")


@pytest.mark.parametrize("there", ["release.pem", "release.pub.pem"])
def test_a_key_is_never_overwritten(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("years of signatures")

    with pytest.raises(ckpt.DestinationError, match=f"{there}' exists already"):
        ckpt.keygen(tmp_path / "release.pem")

    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(there, "years of signatures")]


def test_a_passphrase_keeps_the_key(folder: Path, tmp_path: Path) -> None:
    keys = ckpt.keygen(tmp_path / "k.pem", passphrase=b"correct horse")

    assert b"ENCRYPTED" in keys.private.read_bytes()
    for passphrase in (None, b"wrong"):
        with pytest.raises(ckpt.KeyFileError, match="with its passphrase"):
            ckpt.sign(folder, keys.private, passphrase=passphrase)
    assert not (folder / "signatures.pb").exists()
    ckpt.sign(folder, keys.private, passphrase=b"correct horse")
    assert ckpt.load(folder, trust=keys.public)["n"] == 3


def test_a_key_file_without_an_end_is_none(folder: Path) -> None:
    with pytest.raises(ckpt.KeyFileError, match="'/dev/zero': found nothing of that kind"):
        ckpt.sign(folder, "/dev/zero")
    with pytest.raises(ckpt.KeyFileError, match="'/dev/zero': found nothing of that kind"):
        ckpt.verify(folder, trust="/dev/zero")
    with pytest.raises(treering_reader.FaultError, match="key-file: '/dev/zero' holds nothing"):
        treering_reader.public_key("/dev/zero")


@pytest.mark.parametrize("line", ["a\tb", "a\x9b", "\udcff"])
def test_a_line_is_text_without_control_characters(line: str) -> None:
    with pytest.raises(ValueError, match=r"line has the character .*; expected at most 256 bytes without control"):
        ckpt.signer(OLD, line=line)


@pytest.mark.parametrize("passphrase", [b"", "correct horse"])
def test_a_passphrase_is_bytes_and_some(passphrase: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the passphrase is empty, or no bytes"):
        ckpt.keygen(tmp_path / "k.pem", passphrase=passphrase)
    with pytest.raises(ValueError, match="the passphrase is empty, or no bytes"):
        ckpt.sign(folder, ckpt.keygen(tmp_path / "plain.pem").private, passphrase=passphrase)

    assert not (tmp_path / "k.pem").exists()


def test_a_private_key_is_not_named_as_a_public_one(tmp_path: Path) -> None:
    with pytest.raises(ckpt.DestinationError, match="named as public keys are"):
        ckpt.keygen(tmp_path / "k.pub.pem")

    assert list(tmp_path.iterdir()) == []


def test_keys_that_were_mixed_up_are_told_by_their_kind(folder: Path, tmp_path: Path) -> None:
    plain, locked = ckpt.keygen(tmp_path / "plain.pem"), ckpt.keygen(tmp_path / "locked.pem", passphrase=b"secret")

    with pytest.raises(ckpt.KeyFileError, match="found PUBLIC KEY, expected an Ed25519 private key"):
        ckpt.sign(folder, plain.public)
    with pytest.raises(ckpt.KeyFileError, match="found PRIVATE KEY, expected an Ed25519 public key"):
        ckpt.verify(folder, trust=plain.private)
    with pytest.raises(ckpt.KeyFileError, match=r"found ENCRYPTED PRIVATE KEY, expected .* with its passphrase"):
        ckpt.sign(folder, locked.private)
    with pytest.raises(ckpt.KeyFileError, match=r"found PRIVATE KEY, expected .* and none where it is not"):
        ckpt.sign(folder, plain.private, passphrase=b"secret")


def test_one_key_alone_stands_for_a_list_of_one(folder: Path, tmp_path: Path) -> None:
    old, new = ckpt.keygen(tmp_path / "old.pem"), ckpt.keygen(tmp_path / "new.pem")
    ckpt.sign(folder, old.private)

    ckpt.sign(folder, new.private, replaces=old.public)
    assert [text(signed.key_id) for signed in signatures_of(folder).own] == [new.key_id]
    assert ckpt.unsign(folder, new.public) == 1


def test_what_is_no_ed25519_key_is_said(folder: Path, tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for data, found in ((b"hello", "nothing of that kind"), (other, "ECPrivateKey")):
        (tmp_path / "k.pem").write_bytes(data)
        with pytest.raises(ckpt.KeyFileError, match=found):
            ckpt.sign(folder, tmp_path / "k.pem")
    with pytest.raises(ckpt.KeyFileError, match="expected an Ed25519 private key"):
        ckpt.sign(folder, ckpt.keygen(tmp_path / "new.pem").public)
    with pytest.raises(FileNotFoundError):
        ckpt.sign(folder, tmp_path / "nowhere.pem")


# --- adding, rotating, removing ----------------------------------------------------------------------------------


def test_a_key_is_rotated_and_nothing_else_changes(folder: Path) -> None:
    ckpt.sign(folder, OLD, line="mnist", now=noon)
    before = _files(folder)

    ckpt.sign(folder, NEW, line="mnist", now=noon, replaces=[OLD.public_key()])

    assert ckpt.load(folder, trust=trusting(NEW, line="mnist"))["n"] == 3
    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.load(folder, trust=trusting(OLD))
    after = _files(folder)
    assert {name for name in before if before[name] != after[name]} == {"signatures.pb"}
    assert ckpt.verify(folder).foreign == ()


def test_signatures_are_added_and_taken_out_one_by_one(folder: Path) -> None:
    statements = [ckpt.sign(folder, key, now=noon) for key in (OLD, NEW, FOREIGN)]

    assert [statement.key_id for statement in statements] == [name_of(key) for key in (OLD, NEW, FOREIGN)]
    assert {claim.key_id for claim in ckpt.inspect(folder).claims} == {name_of(key) for key in (OLD, NEW, FOREIGN)}
    assert ckpt.unsign(folder, [FOREIGN.public_key()]) == 1
    assert ckpt.unsign(folder, [FOREIGN.public_key()]) == 0
    for key in (OLD, NEW):
        assert ckpt.verify(folder, trust=trusting(key)).ok
    assert ckpt.unsign(folder, [OLD.public_key(), NEW.public_key()]) == 2
    assert [type(fault) for fault in ckpt.verify(folder, trust=trusting(OLD)).faults] == [ckpt.UnsignedError]


def test_one_key_may_sign_for_two_lines_and_renew(folder: Path) -> None:
    for line in ("mnist", "search"):
        ckpt.sign(folder, OLD, line=line, now=noon, not_after=later(days=1))
    for line in ("mnist", "search"):
        assert ckpt.verify(folder, trust=trusting(OLD, line=line)).ok

    ckpt.sign(
        folder, OLD, line="mnist", now=lambda: later(days=2), not_after=later(days=3), replaces=[OLD.public_key()]
    )

    accepted = ckpt.verify(folder, trust=trusting(OLD, now=later(days=2))).accepted
    assert accepted is not None
    assert accepted.not_after == later(days=3)
    assert len(signatures_of(folder).own) == 1


def test_the_newest_statement_that_counts_is_told(folder: Path) -> None:
    for hours in (2, 5, 3):
        ckpt.sign(folder, OLD, now=lambda hours=hours: later(hours=hours))  # type: ignore[misc]

    accepted = ckpt.verify(folder, trust=trusting(OLD)).accepted

    assert accepted is not None
    assert accepted.issued_at == later(hours=5)


def test_the_same_signature_twice_is_one(folder: Path) -> None:
    for _ in range(2):
        ckpt.sign(folder, OLD, now=noon)

    assert len(signatures_of(folder).own) == 1


def test_a_full_file_takes_no_more(folder: Path) -> None:
    for number in range(MAX_SIGNATURES):
        ckpt.sign(folder, OLD, now=lambda number=number: later(hours=number))  # type: ignore[misc]
    before = (folder / "signatures.pb").read_bytes()

    with pytest.raises(ValueError, match="has 64 signatures; expected at most 64"):
        ckpt.sign(folder, NEW)

    assert (folder / "signatures.pb").read_bytes() == before
    ckpt.sign(folder, NEW, replaces=[OLD.public_key()])


def test_what_no_statement_may_say_is_refused_before_signing(folder: Path) -> None:
    for arguments, message in (
        ({"line": "a\nb"}, "control characters"),
        ({"line": "x" * 257}, "257 bytes"),
        ({"not_after": later(days=-1)}, "expected a time to come"),
        ({"not_after": NOON.replace(tzinfo=None)}, "time zone"),
        ({"public_key": NEW.public_key()}, "the private key has its own"),
    ):
        with pytest.raises(ValueError, match=message):
            ckpt.sign(folder, OLD, now=noon, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="public_key is None"):
        ckpt.sign(folder, OLD.sign)
    assert not (folder / "signatures.pb").exists()


@pytest.mark.parametrize("name", ["nothing", "a folder without one"])
def test_there_must_be_something_to_sign(name: str, tmp_path: Path) -> None:
    with pytest.raises(ckpt.NotACheckpointError, match=name):
        ckpt.sign(tmp_path / "none" if name == "nothing" else tmp_path, OLD)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_signed_through_a_link_to_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder)

    ckpt.sign(tmp_path / "latest", OLD, now=noon)

    assert ckpt.load(folder, trust=trusting(OLD))["n"] == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "latest"]


def test_an_adopted_file_is_signed_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(9)}, file)
    (tmp_path / "delta.pb").write_bytes(b"what lies in the same folder is another's")
    with pytest.raises(ckpt.NotACheckpointError, match="ckpt adopt"):
        ckpt.sign(file, OLD)
    seal = ckpt.adopt(file).seal

    statement = ckpt.sign(file, OLD, now=noon)

    assert statement.subject == seal
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "delta.pb",
        "x.safetensors",
        "x.safetensors.manifest.pb",
        "x.safetensors.signatures.pb",
    ]
    assert torch.equal(ckpt.load(file, trust=trusting(OLD))["w"], torch.ones(9))
    assert ckpt.verify(file, trust=trusting(OLD)).ok
    assert [type(fault) for fault in ckpt.verify(file, trust=trusting(NEW)).faults] == [ckpt.UntrustedKeyError]
    save_file({"w": torch.zeros(9)}, file)
    (tmp_path / "x.safetensors.manifest.pb").unlink()
    ckpt.adopt(file)
    with pytest.raises(ckpt.WrongSubjectError):
        ckpt.load(file, trust=trusting(OLD))


# --- key services -------------------------------------------------------------------------------------------------


def test_a_key_service_signs(folder: Path, tmp_path: Path) -> None:
    service = ckpt.signer(OLD.sign, public_key=OLD.public_key(), line="mnist", now=noon)
    ckpt.save(STATE, tmp_path / "saved", sign=service)
    ckpt.sign(folder, OLD.sign, public_key=OLD.public_key(), line="mnist", now=noon)

    for path in (folder, tmp_path / "saved"):
        assert ckpt.load(path, trust=trusting(OLD, line="mnist"))["n"] == 3


GARBAGE: dict[str, Callable[[bytes], object]] = {
    "nothing": lambda data: None,
    "text": lambda data: "signature",
    "zeros": lambda data: bytes(64),
    "a byte less": lambda data: OLD.sign(data)[:-1],
    "another key's": FOREIGN.sign,
    "of other bytes": lambda data: OLD.sign(data + b"x"),
}


@pytest.mark.parametrize("answer", GARBAGE)
def test_a_signer_that_answers_garbage_is_refused_at_once(answer: str, folder: Path, tmp_path: Path) -> None:
    who = ckpt.signer(GARBAGE[answer], public_key=OLD.public_key())  # type: ignore[arg-type]
    before = _files(folder)

    with pytest.raises(ckpt.BadSignatureError, match=f"no signature of its statement, expected one by {name_of(OLD)}"):
        ckpt.sign(folder, GARBAGE[answer], public_key=OLD.public_key())  # type: ignore[arg-type]
    with pytest.raises(ckpt.BadSignatureError):
        ckpt.save(STATE, tmp_path / "new", sign=who)
    with pytest.raises(ckpt.BadSignatureError):
        ckpt.save({"n": 4}, folder, sign=who, overwrite=True)
    with pytest.raises(ckpt.BadSignatureError):
        ckpt.diff(folder, folder, tmp_path / "delta", sign=who)

    assert _files(folder) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_a_key_that_cannot_be_read_stops_a_save_before_it_writes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ckpt.save(STATE, tmp_path / "c", sign=tmp_path / "nowhere.pem")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_replaced_while_its_signature_is_made_is_signed_as_it_is_then(tmp_path: Path) -> None:
    path, asked = tmp_path / "c", []
    ckpt.save({"n": 1}, path, sign=NEW)
    ckpt.save({"n": 2}, tmp_path / "other")

    def slow(data: bytes) -> bytes:
        asked.append(data)
        if len(asked) == 1:
            path.rename(tmp_path / "before")
            (tmp_path / "other").rename(path)
        return OLD.sign(data)

    statement = ckpt.sign(path, slow, public_key=OLD.public_key(), now=noon)

    assert len(asked) == 2
    assert statement.subject == ckpt.read_manifest(path).seal
    assert ckpt.load(path, trust=trusting(OLD))["n"] == 2
    assert len(signatures_of(tmp_path / "before").own) == 1


# --- several at once, and kills ---------------------------------------------------------------------------------

_MANY = """
import sys, ckpt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 8):
    ckpt.sign(sys.argv[1], Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
"""


def test_two_signers_at_once_lose_nothing(folder: Path, tmp_path: Path) -> None:
    signers = [subprocess.Popen([sys.executable, "-c", _MANY, str(folder), str(start)]) for start in (10, 50)]

    assert [signer.wait(timeout=250) for signer in signers] == [0, 0]

    assert len(signatures_of(folder).own) == 16
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


_REPLACING = """
import sys, ckpt, torch
for number in range(25):
    ckpt.save({"w": torch.full((9,), float(number))}, sys.argv[1], overwrite=True, sign=sys.argv[2])
"""


def test_a_signer_does_not_get_into_the_way_of_a_writer(tmp_path: Path) -> None:
    keys = ckpt.keygen(tmp_path / "k.pem")
    ckpt.save({"w": torch.zeros(9)}, tmp_path / "c", sign=keys.private)
    writer = subprocess.Popen([sys.executable, "-c", _REPLACING, str(tmp_path / "c"), str(keys.private)])
    signed = 0
    try:
        while writer.poll() is None:
            ckpt.sign(tmp_path / "c", OLD, replaces=[OLD.public_key()])
            signed += 1
            assert ckpt.verify(tmp_path / "c", trust=keys.public).ok
    finally:
        code = writer.wait(timeout=250)

    assert code == 0
    assert signed
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "k.pem", "k.pub.pem"]


# Kills a child at its n-th event that changes the disk, n = 1, 2, …, until it lives; tells what stands there each time.
_KILLED = """
import json, os, signal, sys, torch, ckpt
from pathlib import Path
from typing import Any
action, work = sys.argv[1], Path(sys.argv[2])
torch.set_num_threads(1)
path, key, public = work / "c", work / "k.pem", work / "k.pub.pem"
state = {"w": torch.ones(9)}
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock", "ctypes.dlsym")

def child(number):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event in EVENTS and not (event == "open" and not str(arguments[0]).startswith(str(work))):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    if action == "sign":
        ckpt.sign(path, key)
    else:
        ckpt.save(state, path, sign=key)
    os._exit(0)

def found():
    if not path.exists():
        return "nothing"
    report = ckpt.verify(path)
    if not report.ok or report.foreign:
        return "broken"
    faults = ckpt.verify(path, trust=public).faults
    return type(faults[0]).__name__ if faults else "signed"

states, code, number = [], 1, 0
while code:
    number += 1
    if action == "sign":
        ckpt.save(state, path, overwrite=path.exists())
    elif path.exists():
        os.rename(path, work.parent / f"gone-{number}")
    pid = os.fork()
    if pid == 0:
        child(number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    states.append(found() if code in (0, -signal.SIGKILL) else "failed")
    if path.exists():
        ckpt.sign(path, key)
    else:
        ckpt.save(state, path, sign=key)
    if sorted(entry.name for entry in work.iterdir()) != ["c", "k.pem", "k.pub.pem"] or found() != "signed":
        states.append("left over")
print(json.dumps(states))
"""


@pytest.mark.parametrize(("action", "before"), [("sign", "UnsignedError"), ("save", "nothing")])
def test_a_killed_signer_leaves_a_signed_state_or_the_one_before(action: str, before: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    ckpt.keygen(tmp_path / "work" / "k.pem")

    result = subprocess.run(
        [sys.executable, "-c", _KILLED, action, str(tmp_path / "work")],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )

    assert result.returncode == 0, result.stderr
    states = json.loads(result.stdout)
    assert set(states) == {before, "signed"}
    assert len(states) > 8
    assert (states[0], states[-1]) == (before, "signed")
    shutil.rmtree(tmp_path / "work")
