"""What a person sees of a version in the MLflow UI: ``integrity.md``, ``chain.html``, ``manifest.json``.

Self-contained files: the UI shows Markdown and sandboxed HTML, and verifies nothing by itself, so each page ends
with the command that does.
"""

import html
import json
from collections.abc import Sequence
from pathlib import Path

import ckpt
from registry.versions import DELTA, Version


def write_pages(
    out: Path, manifest: ckpt.Manifest, *, name: str, kind: str, stored_bytes: int, full_bytes: int
) -> None:
    """The pages about one version alone, into the folder ``out``."""
    (out / "integrity.md").write_text(
        integrity(manifest, name=name, kind=kind, stored_bytes=stored_bytes, full_bytes=full_bytes), "utf-8"
    )
    (out / "manifest.json").write_text(json.dumps(described(manifest), indent=1, ensure_ascii=False), "utf-8")


def integrity(manifest: ckpt.Manifest, *, name: str, kind: str, stored_bytes: int, full_bytes: int) -> str:
    """How a version's bytes are checked, in Markdown."""
    rows = "\n".join(
        f"| `{tensor.name}` | {tensor.dtype} | {list(tensor.shape)} | {tensor.size_bytes:,} | "
        f"`{manifest.storages[tensor.storage].digest().hex()[:16]}` |"
        for tensor in manifest.tensors
    )
    return f"""# Integrity of {name}

| checkpoint | |
|---|---|
| root (weights and state) | `{manifest.root}` |
| seal (root, attachments, metadata) | `{manifest.seal}` |
| stored as | {kind}, {stored_bytes:,} bytes |
| a full copy | {full_bytes:,} bytes |

Every chunk of 1 MiB has a CRC-32 and a SHA-256 in `manifest.pb`; nothing is unpickled.

## Tensors

| name | dtype | shape | bytes | digest |
|---|---|---|---|---|
{rows}

## Check it yourself

```
python -m registry fetch {name}/VERSION
python -m ckpt verify FOLDER --root {manifest.root}
```
"""


def described(manifest: ckpt.Manifest) -> dict[str, object]:
    """The manifest for people and scripts; the binding form is ``manifest.pb``."""
    return {
        "root": manifest.root,
        "seal": manifest.seal,
        "tensors": [
            {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "bytes": tensor.size_bytes}
            for tensor in manifest.tensors
        ],
        "attachments": [
            {"path": item.path, "bytes": item.chunks.size_bytes, "sha256": item.chunks.digest().hex()}
            for item in manifest.attachments
        ],
        "metadata": dict(manifest.metadata),
    }


_BOX_WIDTH, _BOX_HEIGHT, _GAP, _LEFT = 330, 58, 18, 110  # as wide as MLflow's preview of an artifact


def chain(versions: Sequence[Version]) -> str:
    """The versions of a model and the deltas between them, newest first, as one SVG in a page without scripts.

    A box is a version; its part in blue is what is stored of a full copy; an arrow leads from the version that a delta
    is made from.
    """
    newest_first = versions[::-1]
    place = {version.number: index for index, version in enumerate(newest_first)}
    boxes = "".join(_box(version, place[version.number]) for version in newest_first)
    arrows = "".join(
        _arrow(place[version.parent], place[version.number])
        for version in newest_first
        if version.kind == DELTA and version.parent in place
    )
    width, height = _LEFT + _BOX_WIDTH + 2, len(versions) * (_BOX_HEIGHT + _GAP)
    title = html.escape(versions[-1].name) if versions else ""
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}: versions</title>'
        "<style>body{font:13px system-ui,sans-serif;margin:1rem}text{font:12px system-ui,sans-serif}"
        "svg{max-width:100%}</style>"
        f"<h1>{title}: versions and deltas</h1>"
        "<p>Blue: the part of a full copy that is stored. Arrows: from a version to the deltas made from it.</p>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {height}" role="img">'
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>'
        f"{arrows}{boxes}</svg>"
    )


def _box(version: Version, index: int) -> str:
    x, y = _LEFT, index * (_BOX_HEIGHT + _GAP) + 1
    share = max(2.0, _BOX_WIDTH * min(version.stored_bytes / version.full_bytes, 1.0))
    origin = f" on v{version.parent}, ×{version.ratio:.1f} smaller" if version.parent else ""
    title = f"v{version.number} · {html.escape(version.kind)}{origin}"
    return (
        f'<g><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" fill="#eef3f8" stroke="#789"/>'
        f'<rect x="{x}" y="{y}" width="{share:.1f}" height="{_BOX_HEIGHT}" fill="#9dc3e6"/>'
        f'<text x="{x + 8}" y="{y + 19}" font-weight="bold">{title}</text>'
        f'<text x="{x + 8}" y="{y + 35}">{version.stored_bytes:,} bytes stored of {version.full_bytes:,}</text>'
        f'<text x="{x + 8}" y="{y + 50}">root {html.escape(version.root[7:31])}…</text></g>'
    )


def _arrow(start: int, end: int) -> str:
    """From the left side of one box up to that of a later version; the further, the wider the bow."""
    start_y, end_y = (index * (_BOX_HEIGHT + _GAP) + _BOX_HEIGHT / 2 for index in (start, end))
    bow = _LEFT - min(22 * (start - end), _LEFT - 8) * 1.2
    return (
        f'<path d="M{_LEFT},{start_y - 8} C{bow:.0f},{start_y - 8} {bow:.0f},{end_y + 8} {_LEFT - 2},{end_y + 8}" '
        'fill="none" stroke="#555" marker-end="url(#tip)"/>'
    )
