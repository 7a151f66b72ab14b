"""Read a checkpoint with nothing but ``checkpoint.md`` and the standard library, and say what is in it.

    python docs/formats/reader.py PATH [--json] [--root sha256:…]

PATH is a checkpoint's folder, or an adopted ``NAME.safetensors`` with ``NAME.safetensors.manifest.pb`` beside it. On
any fault it prints one line, a stable word first (``docs/formats/vectors/README.md`` lists them), and exits with 1.
"""

from __future__ import annotations

import argparse
import json
import sys

from treering_reader import Checkpoint, FaultError, read, rendered


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0 for a sound checkpoint, 1 for a fault."""
    parser = argparse.ArgumentParser(description="Verify a checkpoint and say what is in it.")
    parser.add_argument("path")
    parser.add_argument("--json", action="store_true", help="everything but the tensors' bytes, as JSON")
    parser.add_argument("--root", help="the root that it must have")
    options = parser.parse_args(arguments)
    try:
        checkpoint = read(options.path, root=options.root)
        print(json.dumps(rendered(checkpoint), indent=1) if options.json else summary(checkpoint))
    except FaultError as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


def summary(checkpoint: Checkpoint) -> str:
    """Root, seal, counts, and a line for each tensor."""
    manifest = checkpoint.manifest
    size = sum(storage.size for storage in manifest.storages)
    lines = [
        f"root         {checkpoint.root}",
        f"seal         {checkpoint.seal}",
        f"payload      {size} bytes in {len(manifest.storages)} storages, {len(manifest.files)} files"
        + (" (adopted)" if manifest.adopted else ""),
        f"signatures   {len(checkpoint.signatures)}, not verified",
        *(f"attachment   {path!r}, {len(content)} bytes" for path, content in checkpoint.attachments.items()),
        *(f"metadata     {key!r}: {value!r}" for key, value in checkpoint.metadata.items()),
    ]
    for name, loaded in checkpoint.tensors.items():
        record = loaded.record
        lines.append(f"tensor       {name!r}: {record.dtype} {list(record.shape)}, strides {list(record.strides)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
