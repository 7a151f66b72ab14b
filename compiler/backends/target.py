"""A target: one package of native code for one kind of machine, as the program names it.

The program holds the SHA-256 and the size of the package; the bytes lie beside it, at ``path``.
"""

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a package needs of its host, and how to know that it is the right one."""

    backend: str
    requirement: str
    torch_version: str
    path: str
    size_bytes: int
    sha256: str

    @staticmethod
    def describe(content: bytes, *, backend: str, requirement: str, suffix: str) -> "Target":
        """The target whose package is ``content``, built by this torch."""
        return Target(
            backend=backend,
            requirement=requirement,
            torch_version=torch_version(),
            path=f"targets/{backend}-{_file_word(requirement)}{suffix}",
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )

    def matches(self, content: bytes) -> bool:
        """Whether ``content`` is this target's package, byte for byte."""
        return len(content) == self.size_bytes and hashlib.sha256(content).hexdigest() == self.sha256


def _file_word(requirement: str) -> str:
    """A requirement as part of a file's name: a long one by its base and eight digits that tell it from others."""
    base, _, extensions = requirement.partition("+")
    return f"{base}-{hashlib.sha256(extensions.encode()).hexdigest()[:8]}" if extensions else base


def torch_version() -> str:
    """The public version, without the local part that names the wheel's CUDA: ``2.13.0``."""
    return str(torch.__version__).partition("+")[0]
