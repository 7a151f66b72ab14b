"""What a release attaches beside the program."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import recipes
from flows.release import _own_attachments


def recipe(path: str) -> recipes.Recipe:
    return recipes.Recipe(module_name="own", module=SimpleNamespace(attachments=lambda: {path: Path("words.txt")}))


def test_a_recipes_own_files_travel_with_the_version() -> None:
    assert _own_attachments(recipe("programs/words.txt")) == {"programs/words.txt": Path("words.txt")}


def test_the_place_of_the_program_is_taken() -> None:
    with pytest.raises(
        recipes.InvalidRecipeError, match=r"files at program/words\.txt, expected none under 'program/'"
    ):
        _own_attachments(recipe("program/words.txt"))
