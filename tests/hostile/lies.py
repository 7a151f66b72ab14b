"""What a lie is: how it is told, which call finds it first, and what that call has to say of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import ckpt


class Look(IntEnum):
    """How far a call looks; one that looks further finds all that the others find."""

    MANIFEST = 1  # and signatures: what stands in protobuf
    HEADER = 2  # sizes, names and headers of the files
    CRC32 = 3  # every byte, by CRC-32
    SHA256 = 4  # every byte, by SHA-256


@dataclass(frozen=True, slots=True)
class Lie:
    """One entry of the gallery.

    ``tell`` changes what it is given in place: a parsed message, or the path of a sound file or folder. Who finds it
    raises ``error``, of exactly this class, with ``says`` in its message.
    """

    tell: Callable[[Any], object]
    says: str
    error: type[ckpt.CheckpointError] = ckpt.FormatError
    found_by: Look = Look.MANIFEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of file, with all lies about it.

    ``make`` writes a sound one into an empty folder, with what the calls need beside it; ``name`` is the sound one's.
    """

    name: str
    make: Callable[[Path], object]
    lies: dict[str, Lie]
    calls: dict[str, tuple[Look, Callable[[Path], object]]]
