"""The names that the format uses in a folder, and those that attachments may bear.

Nothing that a manifest names is joined to a path before it passed here: a payload file has one fixed form, an
attachment a relative, normalised path that collides with none of the format's own.
"""

import itertools
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from ckpt.errors import FormatError

MANIFEST_NAME = "manifest.pb"
DELTA_NAME = "delta.pb"
SIGNATURES_NAME = "signatures.pb"
INDEX_NAME = "model.safetensors.index.json"
WEIGHTS, EXTRA = "weights", "extra"
MAX_NAME_BYTES = 4096
_RESERVED_NAMES = frozenset({MANIFEST_NAME, DELTA_NAME, INDEX_NAME, SIGNATURES_NAME})
_RESERVED_PREFIXES = (f"{WEIGHTS}-", f"{EXTRA}-", "patch-")
ADOPTED_SUFFIX = ".safetensors"
_MAX_FILE_NAME_BYTES = 255
_PAYLOAD = re.compile(rf"({WEIGHTS}|{EXTRA})-[0-9]{{5,}}-[0-9a-f]{{8}}\.safetensors")


def payload_kind(name: str) -> str | None:
    """``"weights"`` or ``"extra"`` for the name of a payload file, None for the index.

    Raises:
        FormatError: it is neither.
    """
    if name == INDEX_NAME:
        return None
    match = _PAYLOAD.fullmatch(name)
    if match is None:
        raise FormatError(
            f"manifest.files['{name[:80]}']", "a name of that form", f"weights-…, extra-… or {INDEX_NAME}"
        )
    return match[1]


def manifest_beside(name: str) -> str:
    """The manifest of a single file that was adopted where it lies."""
    return f"{name}.{MANIFEST_NAME}"


def signatures_beside(name: str) -> str:
    """The signatures of a single file that was adopted where it lies; of a folder, ``name`` is empty."""
    return f"{name}.{SIGNATURES_NAME}" if name else SIGNATURES_NAME


def check_adopted_name(name: str) -> None:
    """Whether a file that others wrote may bear its name in a manifest: one part, ``*.safetensors``.

    Raises:
        FormatError: it has another form.
    """
    plain = name.endswith(ADOPTED_SUFFIX) and not set(name) & {"/", "\\", "\0"}
    if not plain or len(name.encode("utf-8", "surrogatepass")) > _MAX_FILE_NAME_BYTES:
        raise FormatError(f"file '{name[:80]}'", "a name of that form", f"one in the folder, *{ADOPTED_SUFFIX}")


def check_attachment_paths(paths: Iterable[str]) -> None:
    """Whether attachments may stand at these paths, all of them together.

    Raises:
        FormatError: one has another form, a name of the format's own, or lies inside another one.
    """
    files = set(paths)
    for path in files:
        _check_attachment_path(path)
    # With NUL between its parts, which no path holds, a path comes right before those inside it.
    for outer, inner in itertools.pairwise(sorted(path.replace("/", "\0") for path in files)):
        if inner.startswith(f"{outer}\0"):
            outer, inner = (path.replace("\0", "/")[:80] for path in (outer, inner))
            raise FormatError(f"attachment '{inner}'", f"a file at '{outer}'", "a folder there")


def _check_attachment_path(path: str) -> None:
    pure = PurePosixPath(path)
    parts = pure.parts
    plain = path == str(pure) and not pure.is_absolute() and ".." not in parts and parts and "\0" not in path
    if not plain or re.search("[\\\\\ud800-\udfff]", path) or len(path.encode()) > MAX_NAME_BYTES:
        raise FormatError(f"attachment '{path[:80]}'", "a path of that form", "a relative, normalised POSIX path")
    if parts[0] in _RESERVED_NAMES or parts[0].startswith(_RESERVED_PREFIXES):
        raise FormatError(f"attachment '{path[:80]}'", "a name that the format uses itself", "another name")
