"""Sentences with an honest label that every installation has: what the docstrings of six installed libraries say.

The text is the first paragraph of a function's or class's docstring, read from the source files without importing them;
the label is the library it stands in. ``requirements.lock`` pins the libraries, so everyone gets the same rows. Nothing
is copied out of the packages, whose licences (BSD, MIT, PSF) would allow it.
"""

import ast
import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ("matplotlib", "networkx", "pandas", "sklearn", "sqlalchemy", "sympy")
FROM_EACH = 600  # of 1,557 in the library that has fewest


def docstrings() -> Iterator[tuple[str, str]]:
    """Pairs of text and library, ``FROM_EACH`` distinct texts of each, library after library.

    Raises:
        ModuleNotFoundError: A library is not installed.
    """
    for library in LIBRARIES:
        texts: dict[str, None] = {}
        for file in _files(library):
            texts |= dict.fromkeys(_texts(file))
            if len(texts) >= FROM_EACH:
                break
        yield from ((text, library) for text in list(texts)[:FROM_EACH])


def _files(library: str) -> list[Path]:
    """Source files without tests, in an order that mixes folders and is the same everywhere."""
    spec = find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"'{library}' is not installed: expected the packages of requirements.lock")
    root = Path(spec.submodule_search_locations[0])
    found = (file for file in root.rglob("*.py") if "tests" not in file.relative_to(root).parts)
    return sorted(found, key=lambda file: hashlib.sha256(file.relative_to(root).as_posix().encode()).digest())


def _texts(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text:
                yield " ".join(text.split("\n\n")[0].split())
