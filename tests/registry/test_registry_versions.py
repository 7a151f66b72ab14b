"""Parents make short chains; references say what they name."""

import pytest

from registry.errors import InvalidNameError
from registry.versions import (
    DELTA,
    FULL,
    Reference,
    Version,
    parent_of,
    parse_reference,
    patch_bytes,
    path_to,
    version_from_tags,
)


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
    assert patch_bytes(by_number[8], by_number) == 30
    assert patch_bytes(by_number[1], by_number) == 0


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


def test_after_a_full_version_parents_start_from_it() -> None:
    versions = [*history(5), version(6, None)]

    for number in (7, 8, 9):
        parent = parent_of(versions)
        assert parent is not None
        versions.append(version(number, parent.number))

    assert [known.parent for known in versions[6:]] == [6, 6, 8]


def test_a_version_with_a_broken_chain_is_passed_over() -> None:
    first, second, *_ = history(2)

    assert parent_of([first, second]) == first
    assert parent_of([second]) is None


GOOD = {
    "treering.root": "sha256:" + "0" * 64,
    "treering.seal": "sha256:" + "1" * 64,
    "treering.kind": "delta",
    "treering.parent": "2",
    "treering.stored_bytes": "10",
    "treering.full_bytes": "100",
    "treering.model_id": "m-1",
    "treering.location": "mlflow-artifacts:/1",
    "treering.publish_seconds": "0.5",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "half"),
        ("kind", "full"),
        ("parent", "3"),
        ("parent", "x"),
        ("parent", None),
        ("seal", "sha256:../../etc"),
        ("root", ""),
        ("stored_bytes", "many"),
        ("full_bytes", None),
    ],
)
def test_tags_that_make_no_sense_are_refused(key: str, value: str | None) -> None:
    tags = {name: text for name, text in (GOOD | {f"treering.{key}": value}).items() if text is not None}

    assert version_from_tags("m", 3, GOOD).parent == 2
    with pytest.raises((KeyError, ValueError)):
        version_from_tags("m", 3, tags)
