"""Parents make short chains; references say what they name."""

import pytest

from registry.errors import InvalidNameError
from registry.versions import DELTA, FULL, Reference, Version, fetch_bytes, parent_of, parse_reference, path_to


def version(number: int, parent: int | None) -> Version:
    return Version(
        name="m",
        number=number,
        root=f"root{number}",
        seal=f"seal{number}",
        kind=DELTA if parent else FULL,
        parent=parent,
        stored_bytes=10 if parent else 1000,
        full_bytes=1000,
        program=None,
        model_id="",
        location="",
        publish_seconds=0.0,
        tags={},
    )


def history(count: int) -> list[Version]:
    versions: list[Version] = []
    for number in range(1, count + 1):
        parent = parent_of(versions)
        versions.append(version(number, parent.number if parent else None))
    return versions


def test_any_version_is_at_most_log2_patches_away() -> None:
    versions = history(300)
    by_number = {known.number: known for known in versions}

    for known in versions:
        steps = path_to(known, by_number, frozenset())
        assert steps[0].kind == FULL
        assert len(steps) - 1 <= (known.number - 1).bit_length()


def test_a_fetch_starts_from_what_is_held() -> None:
    by_number = {known.number: known for known in history(8)}

    assert [step.number for step in path_to(by_number[8], by_number, frozenset({"seal7"}))] == [8]
    assert path_to(by_number[8], by_number, frozenset({"seal8"})) == []
    assert fetch_bytes(by_number[8], by_number, frozenset({"seal1"})) == 30
    assert fetch_bytes(by_number[8], by_number) == 1030


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mnist@champion", Reference(name="mnist", alias="champion")),
        ("models:/mnist@x", Reference(name="mnist", alias="x")),
        ("mnist/3", Reference(name="mnist", number=3)),
        ("mnist", Reference(name="mnist", alias="champion")),
    ],
)
def test_references_are_read(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize("text", ["", "a/b", "../x", "a@", "@a", "a b", "-a", "a/3/4", "x" * 101])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError, match="no model name or reference"):
        parse_reference(text)
