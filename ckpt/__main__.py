"""The command line of checkpoints and deltas: ``python -m ckpt --help``.

Every command prints for people, or with ``--json`` one object for machines. It exits with 0 when all is well, 1 on
any fault found, 2 on a call that makes no sense, 130 when it was interrupted.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ckpt
from ckpt.command_line import Parser, parsed, run_command
from ckpt.deltas.codecs import CODECS
from ckpt.deltas.verification import is_delta
from ckpt.errors import CheckpointError
from ckpt.format.manifest import FORMAT_VERSION
from ckpt.progress_bar import progress_bar
from ckpt.saving.writer import PRODUCER
from ckpt.signatures.statements import Statement

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_MAX_PASSPHRASE_BYTES = 64 << 10  # a line that reaches so far is refused as too long by the key library

Result = tuple[int, dict[str, Any], str]  # exit code, the object, the text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see the module's head."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parsed(_parser(), arguments)
    try:
        code, facts, text = options.run(options)
    except (CheckpointError, OSError, ValueError, KeyboardInterrupt) as error:
        name = type(error).__name__
        message = " ".join([str(error) or "stopped before its end", *getattr(error, "__notes__", ())])
        if options.json:
            print(json.dumps({"ok": False, "error": name, "message": message}))
        else:
            print(f"{name}: {_line(message)}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1 if isinstance(error, CheckpointError | OSError) else 2
    print(json.dumps(facts) if options.json else text)
    return int(code)


def _parser() -> Parser:
    parser = Parser(prog="ckpt", description="Inspect, verify, diff and patch checkpoints.")
    parser.add_argument("--version", action="version", version=f"ckpt {PRODUCER['ckpt']}, format {FORMAT_VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspect = _command(
        commands, "inspect", _inspect, "tell what is in a checkpoint or a delta, without reading weights"
    )
    inspect.add_argument("path", type=_path, help="a checkpoint folder, an adopted file, or a delta folder")
    verify = _command(commands, "verify", _verify, "compare every byte with the manifest; list all faults")
    verify.add_argument("path", type=_path, help="a checkpoint folder, an adopted file, or a delta folder")
    verify.add_argument("--level", choices=("sha256", "crc32"), default="sha256", help="default: %(default)s")
    verify.add_argument("--root", help="the root that must be there, sha256:…")
    _add_trust(verify)
    diff = _command(commands, "diff", _diff, "write the delta that turns BASE into TARGET")
    for name in ("base", "target"):
        diff.add_argument(name, type=_path, help="a checkpoint folder")
    diff.add_argument("out", type=_path, help="the delta folder to be")
    _add_codecs(diff)
    apply = _command(commands, "apply", _apply, "write the checkpoint that DELTA makes from BASE")
    apply.add_argument("base", type=_path, help="a checkpoint folder; never written to")
    apply.add_argument("delta", type=_path, help="a delta folder")
    apply.add_argument("out", type=_path, help="the checkpoint folder to be")
    _add_trust(apply)
    _add_deltas_of_deltas(commands)
    adopt = _command(commands, "adopt", _adopt, "give safetensors files of others a manifest, where they lie")
    adopt.add_argument("path", type=_path, help="a .safetensors file, or a folder with an index or one such file")
    adopt.add_argument("--out", type=_path, help="a folder to be, of clones or copies: for read-only places and links")
    convert = _command(commands, "convert", _convert, "write a checkpoint of a .pt, .npz or DCP folder, under limits")
    convert.add_argument("path", type=_path, help="a torch.save file, an .npz, or a folder that DCP wrote")
    convert.add_argument("out", type=_path, help="the checkpoint folder to be")
    reshard = _command(commands, "reshard", _reshard, "write a checkpoint with weights files of another size")
    reshard.add_argument("path", type=_path, help="a checkpoint")
    reshard.add_argument("out", type=_path, help="the checkpoint folder to be")
    reshard.add_argument("--shard-bytes", type=int, required=True, help="size at which a weights file closes")
    _add_trust(reshard)
    consolidate = _command(commands, "consolidate", _consolidate, "write a checkpoint in pieces in its plain form")
    consolidate.add_argument("path", type=_path, help="a checkpoint folder")
    consolidate.add_argument("out", type=_path, help="the checkpoint folder to be")
    _add_trust(consolidate)
    repair = _command(commands, "repair", _repair, "fetch what is bad from a good copy, and only that")
    repair.add_argument("path", type=_path, help="a checkpoint folder, an adopted file, or a delta folder")
    repair.add_argument(
        "--from",
        dest="source",
        required=True,
        help="a checkpoint folder, safetensors, or the address of either; for a delta, a delta folder or its address",
    )
    repair.add_argument("--root", help="the root that must be there; a bad manifest is restored only for one")
    _add_trust(repair)
    _add_retention(commands)
    _add_signing(commands)
    return parser


def _add_deltas_of_deltas(commands: Any) -> None:
    invert = _command(commands, "invert", _invert, "write the delta that turns the target of DELTA back into BASE")
    invert.add_argument("delta", type=_path, help="a delta folder")
    invert.add_argument("--base", type=_path, help="the checkpoint that it was made for; needed")
    squash = _command(commands, "squash", _squash, "write the one delta that does what many do one after the other")
    squash.add_argument("deltas", type=_path, nargs="+", metavar="delta", help="delta folders, in their order")
    squash.add_argument("--base", type=_path, help="the checkpoint that the first one was made for; makes it smaller")
    for command in (invert, squash):
        command.add_argument("out", type=_path, help="the delta folder to be")
        _add_codecs(command)
        _add_trust(command)


def _add_codecs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--codecs", nargs="+", choices=CODECS, default=tuple(CODECS), help="those that may be used; default: all"
    )


def _add_retention(commands: Any) -> None:
    latest = _command(commands, "latest", _latest, "tell the checkpoint of the highest step in a folder")
    keep = _command(commands, "keep", _keep, "remove the checkpoints of a folder but for the newest ones")
    for command in (latest, keep):
        command.add_argument("folder", type=_path, help="where a run's checkpoints stand, step-10, step-20 and so on")
        command.add_argument("--prefix", default="", help="what their names begin with, where runs share the folder")
    keep.add_argument("--newest", type=int, required=True, metavar="N", help="how many of the highest steps stay")
    keep.add_argument("--every", type=int, metavar="STEPS", help="multiples of this stay for good")
    keep.add_argument("--dry-run", action="store_true", help="tell what would be removed, and remove nothing")


def _add_signing(commands: Any) -> None:
    keygen = _command(commands, "keygen", _keygen, "make a key pair: NAME.pem signs, NAME.pub.pem is trusted")
    keygen.add_argument("path", type=_path, help="the private key to be, NAME.pem")
    sign = _command(commands, "sign", _sign, "add a signature to a checkpoint or delta")
    sign.add_argument("path", type=_path, help="a checkpoint or delta folder")
    sign.add_argument("key", type=_path, help="a private key, as keygen writes it")
    sign.add_argument("--line", default="", help="the name under which versions follow each other, such as a model's")
    sign.add_argument("--not-after", type=_moment, help="the end of its time, such as 2027-12-31T12:00 (UTC)")
    sign.add_argument("--replaces", type=_path, action="append", default=[], help="a public key whose signatures go")
    for command in (keygen, sign):
        command.add_argument("--passphrase-file", type=_path, help="its first line is the private key's passphrase")
    unsign = _command(commands, "unsign", _unsign, "take the signatures of some keys from a checkpoint or delta")
    unsign.add_argument("path", type=_path, help="a checkpoint or delta folder")
    unsign.add_argument("keys", type=_path, nargs="+", help="public keys")


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust", type=_path, action="append", help="a public key, one of which must have signed it; repeatable"
    )
    command.add_argument("--line", help="the line that it must be signed for")


def _trust(options: argparse.Namespace) -> ckpt.Trust | None:
    if options.trust is None and options.line is not None:
        raise ValueError("--line says what a signature must name; expected --trust KEY.pub.pem with it")
    return None if options.trust is None else ckpt.Trust(keys=options.trust, line=options.line)


def _path(value: str) -> Path:
    """A path; an empty one, what an unset variable of a shell gives, is not the folder that one is in."""
    if not value:
        raise argparse.ArgumentTypeError("expected a path, found nothing; . is this folder")
    return Path(value)


def _moment(value: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time such as 2027-12-31T12:00, found '{value}'") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Result], description: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=description, description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def _inspect(options: argparse.Namespace) -> Result:
    if is_delta(options.path):
        return _inspect_delta(options.path)
    summary = ckpt.inspect(options.path)
    facts = {field.name: getattr(summary, field.name) for field in fields(summary)}
    facts |= {"path": str(summary.path), "claims": [_statement(claim) for claim in summary.claims]}
    shown = [f"{name:14}{_line(_shown(value))}" for name, value in facts.items() if "claims" not in name]
    claimed = [f"{'claims':14}{_said(claim)}; not verified" for claim in summary.claims]
    unreadable = [f"{'claims':14}{_line(text)}" for text in summary.unreadable_claims]
    return 0, facts, "\n".join([*shown, *claimed, *unreadable])


def _inspect_delta(path: Path) -> Result:
    delta = ckpt.read_delta(path)
    actions = Counter(operation.action.name.lower() for operation in (*delta.storages, *delta.attachments))
    facts: dict[str, Any] = {
        "path": str(path),
        "digest": delta.digest,
        "base_root": delta.base_root,
        "target_root": delta.target_root,
        "sequence": delta.sequence,
        "size_bytes": delta.size_bytes,
        "target_bytes": delta.target.payload_bytes,
        "ratio": round(delta.target.payload_bytes / delta.size_bytes, 2),
        "storages": dict(actions),
        "frames": dict(Counter(frame.codec for frame in delta.frames())),
    }
    return 0, facts, "\n".join(f"{name:14}{_line(_shown(value))}" for name, value in facts.items())


def _statement(statement: Statement) -> dict[str, str | None]:
    return {
        "kind": statement.kind.name.lower(),
        "subject": statement.subject,
        "line": statement.line,
        "issued_at": statement.issued_at.isoformat(),
        "not_after": statement.not_after.isoformat() if statement.not_after else None,
        "key_id": statement.key_id,
    }


def _said(statement: Statement) -> str:
    line = f", line '{statement.line}'" if statement.line else ""
    end = f", until {statement.not_after.isoformat()}" if statement.not_after else ""
    return f"signed by {statement.key_id}{line}, {statement.issued_at.isoformat()}{end}"


def _line(text: str) -> str:
    """Text from a file as one line: what would move a terminal's cursor, or turn its writing round, is spelt out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _verify(options: argparse.Namespace) -> Result:
    report = ckpt.verify(
        options.path, verify=options.level, root=options.root, trust=_trust(options), progress=progress_bar()
    )
    return _told(report)


def _repair(options: argparse.Namespace) -> Result:
    return _told(
        ckpt.repair(options.path, options.source, root=options.root, trust=_trust(options), progress=progress_bar())
    )


def _told(report: ckpt.Report) -> Result:
    facts = {
        "ok": report.ok,
        "path": str(report.path),
        "root": report.root,
        "algorithm": report.algorithm,
        "checked_bytes": report.checked_bytes,
        "restored": list(report.restored),
        "accepted": _statement(report.accepted) if report.accepted else None,
        "faults": [{"error": type(fault).__name__, "message": str(fault)} for fault in report.faults],
        "foreign": list(report.foreign),
    }
    restored = "".join(f"restored {_line(what)}\n" for what in report.restored)
    beside = "".join(f"\nno part of it: {_line(name)}" for name in report.foreign)
    good = f"{report.path}: {report.checked_bytes:,} bytes match by {report.algorithm}, root {report.root}"
    good += f"\n{_said(report.accepted)}" if report.accepted else ""
    bad = "\n".join(f"{type(fault).__name__}: {_line(str(fault))}" for fault in report.faults)
    if report.ok:
        return 0, facts, restored + good + beside
    return 1, facts, f"{restored}{bad}\n{len(report.faults)} fault(s) in {report.path}{beside}"


def _diff(options: argparse.Namespace) -> Result:
    delta = ckpt.diff(options.base, options.target, options.out, codecs=options.codecs, progress=progress_bar())
    return _made_delta(options.out, delta)


def _invert(options: argparse.Namespace) -> Result:
    delta = ckpt.invert(
        options.delta,
        options.out,
        base=options.base,
        trust=_trust(options),
        codecs=options.codecs,
        progress=progress_bar(),
    )
    return _made_delta(options.out, delta)


def _squash(options: argparse.Namespace) -> Result:
    delta = ckpt.squash(
        options.deltas,
        options.out,
        base=options.base,
        trust=_trust(options),
        codecs=options.codecs,
        progress=progress_bar(),
    )
    return _made_delta(options.out, delta)


def _made_delta(where: Path, delta: ckpt.Delta) -> Result:
    full = delta.target.payload_bytes
    facts = {
        "base_root": delta.base_root,
        "target_root": delta.target_root,
        "digest": delta.digest,
        "delta_bytes": delta.size_bytes,
        "full_bytes": full,
    }
    ratio = full / delta.size_bytes
    text = f"{where}: {delta.size_bytes:,} bytes for a state of {full:,} (ratio {ratio:.1f})"
    return 0, facts, f"{text}\n{delta.base_root} → {delta.target_root}"


def _apply(options: argparse.Namespace) -> Result:
    manifest = ckpt.apply(options.base, options.delta, options.out, trust=_trust(options), progress=progress_bar())
    return 0, {"root": manifest.root, "seal": manifest.seal}, f"{options.out}: root {manifest.root}"


def _adopt(options: argparse.Namespace) -> Result:
    manifest = ckpt.adopt(options.path, out=options.out, progress=progress_bar())
    return _made(options.out or options.path, manifest)


def _convert(options: argparse.Namespace) -> Result:
    return _made(options.out, ckpt.convert(options.path, options.out, progress=progress_bar()))


def _latest(options: argparse.Namespace) -> Result:
    found = ckpt.latest(options.folder, prefix=options.prefix)
    if found is None:
        return 1, {"ok": False, "path": None}, f"{options.folder}: no checkpoint whose name ends in a number"
    return 0, {"ok": True, "path": str(found)}, str(found)


def _keep(options: argparse.Namespace) -> Result:
    done = ckpt.keep(
        options.folder,
        newest=options.newest,
        every=options.every,
        prefix=options.prefix,
        dry_run=options.dry_run,
    )
    facts = {"kept": [str(path) for path in done.kept], "removed": [str(path) for path in done.removed]}
    verb = "would remove" if options.dry_run else "removed"
    lines = [f"keeps {path}" for path in done.kept] + [f"{verb} {path}" for path in done.removed]
    return 0, {**facts, "dry_run": options.dry_run}, "\n".join(lines) or f"{options.folder}: no checkpoints"


def _reshard(options: argparse.Namespace) -> Result:
    made = ckpt.reshard(
        options.path,
        options.out,
        shard_bytes=options.shard_bytes,
        trust=_trust(options),
        progress=progress_bar(),
    )
    return _made(options.out, made)


def _consolidate(options: argparse.Namespace) -> Result:
    made = ckpt.consolidate(options.path, options.out, trust=_trust(options), progress=progress_bar())
    return _made(options.out, made)


def _made(where: Path, manifest: ckpt.Manifest) -> Result:
    facts = {"path": str(where), "root": manifest.root, "seal": manifest.seal, "tensors": len(manifest.tensors)}
    return 0, facts, f"{where}: {len(manifest.tensors)} tensors, root {manifest.root}"


def _keygen(options: argparse.Namespace) -> Result:
    made = ckpt.keygen(options.path, passphrase=_passphrase(options))
    facts = {"private": str(made.private), "public": str(made.public), "key_id": made.key_id}
    return 0, facts, f"{made.private} signs: keep it secret\n{made.public} is for those who verify\n{made.key_id}"


def _sign(options: argparse.Namespace) -> Result:
    statement = ckpt.sign(
        options.path,
        options.key,
        passphrase=_passphrase(options),
        line=options.line,
        not_after=options.not_after,
        replaces=options.replaces,
    )
    return 0, _statement(statement), f"{options.path}: {_said(statement)}"


def _unsign(options: argparse.Namespace) -> Result:
    count = ckpt.unsign(options.path, options.keys)
    return 0, {"removed": count}, f"{options.path}: {count} signature(s) taken out"


def _passphrase(options: argparse.Namespace) -> bytes | None:
    """The first line of a file: what stands in a command line is seen by everybody on the machine."""
    file: Path | None = options.passphrase_file
    if file is None:
        return None
    with open(file, "rb") as opened:
        first = re.split(b"[\r\n]", opened.read(_MAX_PASSPHRASE_BYTES), maxsplit=1)[0]
    if not first:
        raise ValueError(f"the first line of '{file}' is empty; expected a passphrase there")
    return first


if __name__ == "__main__":
    sys.exit(main())
