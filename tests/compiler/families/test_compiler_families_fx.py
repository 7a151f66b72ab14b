"""The page that compares with torch.fx says what torch.fx does: checked on a few of its rows."""

import pytest

from tests.compiler.families.catalogue import ALL
from tests.compiler.families.fx_fuse import PAGE, outcome

CASES = {case.name: case for case in ALL}


@pytest.mark.parametrize(
    ("name", "kind", "folded"),
    [
        ("one convolution twice, a norm on one path", "wrong", 1),
        ("one norm after two convolutions", "right", 2),
        ("two norms after one convolution", "right", 0),
        ("linear, bias True, affine False, float32, wild", "crashes", 0),
    ],
)
def test_torch_fx_does_what_the_page_says(name: str, kind: str, folded: int) -> None:
    found = outcome(CASES[name])

    assert (found.kind, found.folded) == (kind, folded)
    assert kind == "right" or f"| {name} | {kind}: {found.detail[:20]}" in PAGE.read_text()
