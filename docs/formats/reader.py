"""Read a checkpoint with nothing but ``checkpoint.md`` and the standard library, and say what is in it.

    python docs/formats/reader.py PATH [--json] [--root sha256:…] [--trust KEY.pub.pem … [--line LINE] [--at TIME]]

PATH is a checkpoint's folder, or an adopted ``NAME.safetensors`` with ``NAME.safetensors.manifest.pb`` beside it. On
any fault it prints one line, a stable word first (``docs/formats/vectors/README.md`` lists them), and exits with 1.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from datetime import UTC, datetime

from treering_reader import Checkpoint, FaultError, Trust, public_key, read, rendered
from treering_reader.digests import shown
from treering_reader.schema import Statement
from treering_reader.signatures import moment


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0 for a sound checkpoint, 1 for a fault."""
    parser = argparse.ArgumentParser(description="Verify a checkpoint and say what is in it.")
    parser.add_argument("path")
    parser.add_argument("--json", action="store_true", help="everything but the tensors' bytes, as JSON")
    parser.add_argument("--root", help="the root that it must have")
    parser.add_argument("--trust", action="append", help="a public key that must have signed it; repeatable")
    parser.add_argument("--line", help="the line that it must be signed for; without it, any")
    parser.add_argument("--at", type=_time, help="the time at which its signature must be good; without it, now")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the terminal's encoding does not
    if options.trust is None and (options.line, options.at) != (None, None):
        parser.error("--line and --at say what a signature must name; expected --trust KEY.pub.pem with them")
    try:
        checkpoint = read(options.path, root=options.root, trust=_trust(options))
    except FaultError as fault:
        print(fault, file=sys.stderr)
        return 1
    try:
        print(json.dumps(rendered(checkpoint), indent=1) if options.json else summary(checkpoint), flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # a reader that has gone, as head does, needs no word
            print(f"{error}: the answer was not written", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return 1
    return 0


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _trust(options: argparse.Namespace) -> Trust | None:
    if options.trust is None:
        return None
    keys = [public_key(path) for path in options.trust]
    return Trust(keys=keys, line=options.line, at=options.at or datetime.now(UTC))


def summary(checkpoint: Checkpoint) -> str:
    """Root, seal, counts, and a line for each tensor."""
    manifest = checkpoint.manifest
    size = sum(storage.size for storage in manifest.storages)
    lines = [
        f"root         {checkpoint.root}",
        f"seal         {checkpoint.seal}",
        f"payload      {size} bytes in {len(manifest.storages)} storages, {len(manifest.files)} files"
        + (" (adopted)" if manifest.adopted else ""),
        f"signatures   {len(checkpoint.signatures)}, {_said(checkpoint.accepted)}",
        *(f"attachment   {path!r}, {len(content)} bytes" for path, content in checkpoint.attachments.items()),
        *(f"metadata     {key!r}: {value!r}" for key, value in checkpoint.metadata.items()),
    ]
    for name, loaded in checkpoint.tensors.items():
        record = loaded.record
        lines.append(f"tensor       {name!r}: {record.dtype} {list(record.shape)}, strides {list(record.strides)}")
    return "\n".join(lines)


def _said(accepted: Statement | None) -> str:
    if accepted is None:
        return "not verified"
    begin, end = accepted.issued_at_ms, accepted.not_after_ms
    time = f"{moment(begin)} to {moment(end)}" if end else f"from {moment(begin)}"
    return f"verified: by {shown(accepted.key_id)} for line {accepted.line!r}, {time}"


if __name__ == "__main__":
    sys.exit(main())
