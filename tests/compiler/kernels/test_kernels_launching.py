"""How a launch reaches the driver: what is passed at the first call, at later ones, and when operands lie oddly.

The driver is played by an object that writes down what it is given: what follows it is Triton's and the GPU's.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compiler.kernels import launching
from compiler.kernels.launching import Launch

SETTINGS = (7, "gelu", 1e-5)
STREAM = 4711


class Driver:
    """A kernel under ``triton.jit`` and the compiled kernel that it gives."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, int]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def compile_and_run(*arguments: Any, **options: int) -> Any:
            self.told.append(("compile", grid, arguments, options))
            return SimpleNamespace(run=run, function="function", packed_metadata="metadata")

        def run(*arguments: Any) -> None:
            assert arguments[3:9] == (STREAM, "function", "metadata", None, None, None)
            self.told.append(("run", arguments[:3], arguments[9:], {}))

        return compile_and_run


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)


def launch(driver: Driver, *, grid: tuple[int, ...] = (5,), copied: tuple[int, ...] = ()) -> Launch:
    return Launch(
        driver, grid=grid, settings=SETTINGS, device=torch.device("cpu"), copied=copied, num_warps=8, num_stages=2
    )


def test_the_first_call_compiles_and_later_ones_pass_pointers_alone() -> None:
    driver, x, y = Driver(), torch.empty(64), torch.empty(64)
    ready = launch(driver)

    ready(x, None)
    ready(y, None)

    assert driver.told == [
        ("compile", (5, 1, 1), (x, None, *SETTINGS), {"num_warps": 8, "num_stages": 2}),
        ("run", (5, 1, 1), (y.data_ptr(), None, *SETTINGS), {}),
    ]


def test_operands_off_16_bytes_are_never_given_to_code_for_aligned_ones() -> None:
    driver, x = Driver(), torch.empty(65)
    ready = launch(driver)

    ready(x[:64])
    ready(x[1:])
    ready(x[:64])

    assert [(what, arguments[0]) for what, _, arguments, _ in driver.told[::2]] == [
        ("compile", driver.told[0][2][0]),
        ("run", x.data_ptr()),
    ]
    assert driver.told[1][0] == "compile"


def test_code_for_operands_off_16_bytes_is_not_kept() -> None:
    driver, x = Driver(), torch.empty(65)
    ready = launch(driver)

    ready(x[1:])
    ready(x[:64])

    assert [what for what, *_ in driver.told] == ["compile", "compile"]


def test_what_must_be_contiguous_is_made_so_at_every_call() -> None:
    driver, x = Driver(), torch.arange(6.0).view(2, 3).t()
    ready = launch(driver, copied=(1,))

    ready(x, x)

    (_, _, (first, second, *_), _) = driver.told[0]
    assert first is x
    assert second.is_contiguous()
    assert second.equal(x)


def test_without_programs_nothing_is_compiled() -> None:
    driver = Driver()

    launch(driver, grid=(0,))(torch.empty(0))
    launch(driver, grid=(0,))(torch.empty(5)[1:])

    assert driver.told == []
