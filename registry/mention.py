"""Which root a person means, who types less than 64 hexadecimal digits.

A version's number (``3``, ``v3``), the first digits of a root with or without ``sha256:``, as terminals shorten it
(``sha256:8303a421eb59…``), or all of it. Looked up in the ledger alone, so that a rollback needs no server.
"""

import re
from collections.abc import Mapping, Sequence

from registry.errors import UnknownRootError
from registry.ledger import as_listed

_NUMBER = re.compile(r"v?(\d+)")
_START = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})…?")


def root_meant(mention: str, roots: Mapping[str, Sequence[int]], *, model: str) -> str:
    """The one root that a mention names.

    Args:
        mention: What a person wrote. Digits alone are a number, never the beginning of a root.
        roots: Those there are → the numbers of their versions.
        model: For the error.

    Raises:
        UnknownRootError: none, or more than one.
    """
    matches: list[str] = []
    if number := _NUMBER.fullmatch(mention):
        matches = [root for root, numbers in roots.items() if int(number[1]) in numbers]
    elif start := _START.fullmatch(mention):
        matches = [root for root in roots if root.startswith(f"sha256:{start[1]}")]
    if len(matches) != 1:
        several = as_listed({root: roots[root] for root in matches})
        raise UnknownRootError(mention, model=model, matches=several, known=as_listed(roots))
    return matches[0]
