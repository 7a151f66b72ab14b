"""Every kernel compiles for a Hopper GPU, and what it takes there fits; the compiler needs no GPU for that."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.compiler.kernels.cases import CALLS

# Of a thread block, and what the system takes of a multiprocessor for each: CUDA C++ Programming Guide, compute
# capability 9.0.
SHARED_BYTES = 232_448
RESERVED_BYTES = 1_024


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    command = [sys.executable, "-m", "tests.compiler.kernels.compiled"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_compiles(compiled: list[dict[str, Any]]) -> None:
    assert {row["operator"] for row in compiled} == set(CALLS)


def test_no_register_is_spilled_and_shared_memory_suffices(compiled: list[dict[str, Any]]) -> None:
    for row in compiled:
        assert row["stack"] == 0, row
        assert row["shared"] <= SHARED_BYTES, row
        assert row["registers"] * row["num_warps"] * 32 <= 65_536, row


def test_programs_that_stay_fit_beside_each_other_and_are_fed_by_the_copy_engine(
    compiled: list[dict[str, Any]],
) -> None:
    staying = [row for row in compiled if row["what"] == "persistent"]

    assert {row["programs"] for row in staying} == {1, 2}
    for row in staying:
        assert row["programs"] * (row["shared"] + RESERVED_BYTES) <= SHARED_BYTES + RESERVED_BYTES, row
        assert row["programs"] * row["registers"] * row["num_warps"] * 32 <= 65_536, row
        assert min(row["group_products"], row["bulk_copies"]) > 0, row


def test_large_products_keep_more_operands_in_flight_than_small_ones(compiled: list[dict[str, Any]]) -> None:
    small, middle, large = (row["shared"] for row in compiled if row["what"].endswith("squared"))

    assert small < middle < large


def test_rows_are_read_16_bytes_at_a_time_and_large_products_use_the_matrix_units(
    compiled: list[dict[str, Any]],
) -> None:
    rows = [row for row in compiled if row["what"] == "bfloat16" and row["operator"] != "linear_act"]
    (large,) = (row for row in compiled if row["what"] == "4096 squared")

    assert {row["load_bits"] for row in rows} == {128}
    assert large["group_products"] > 0
