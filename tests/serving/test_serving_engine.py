"""How rows become a batch and what is summed of its outputs."""

import numpy as np
import pytest
import torch

from serving.codec import DATATYPES
from serving.engine import MAX_CLASSES, OutputSums, add_up, join, sum_up
from serving.protocol import TensorInfo


def info_of(datatype: str, *row_shape: int) -> TensorInfo:
    return TensorInfo(name="x", datatype=DATATYPES[datatype], row_shape=row_shape)


def test_rows_stand_in_order_and_the_rest_of_the_bucket_is_zero() -> None:
    parts = [np.full((1, 2), 1, np.float32), np.full((2, 2), 2, np.float32)]

    for _ in range(20):  # memory that was used before is used again
        joined = join(parts, info=info_of("FP32", 2), bucket=8)
        assert joined.tolist() == [[1, 1], [2, 2], [2, 2], *[[0, 0]] * 5]
        joined.fill_(float("nan"))


def test_a_batch_starts_where_torch_aligns_its_memory() -> None:
    rows = np.zeros(65, np.float32)[1:].reshape(1, 64)  # off by four bytes

    assert join([rows], info=info_of("FP32", 64), bucket=1).data_ptr() % 64 == 0


@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_every_datatype_reaches_torch_bit_for_bit(datatype: str) -> None:
    kind = DATATYPES[datatype]
    data = bytes(range(1, 9)) if datatype != "BOOL" else bytes([0, 1, 1, 0, 1, 0, 0, 1])
    rows = np.frombuffer(data, dtype=kind.wire)

    joined = join([rows], info=info_of(datatype), bucket=len(rows))

    assert joined.dtype == getattr(torch, kind.torch_name)
    assert joined.view(torch.uint8).numpy().tobytes() == data


def test_sums_are_over_finite_values_and_complete_rows() -> None:
    output = np.array([[1.0, 4.0, 2.0], [np.nan, 1.0, 0.0], [-3.0, -1.0, np.inf]], np.float32)

    sums = sum_up(output, info=info_of("FP32", 3))

    assert sums == OutputSums(
        values=9,
        nonfinite=2,
        total=1 + 4 + 2 + 1 + 0 - 3 - 1,
        square_total=1 + 16 + 4 + 1 + 0 + 9 + 1,
        margin_total=2.0,
        class_counts=((1, 1),),
    )


@pytest.mark.parametrize("columns", [1, MAX_CLASSES + 1])
def test_features_are_not_counted_as_classes(columns: int) -> None:
    sums = sum_up(np.ones((2, columns), np.float32), info=info_of("FP32", columns))

    assert (sums.values, sums.margin_total, sums.class_counts) == (2 * columns, 0.0, ())


def test_integers_are_only_counted() -> None:
    assert sum_up(np.ones((2, 3), np.int64), info=info_of("INT64", 3)) == OutputSums(values=6)


def test_sums_add_up() -> None:
    parts = [
        OutputSums(values=2, total=1.0, margin_total=0.5, class_counts=((0, 1), (3, 1))),
        OutputSums(values=1, nonfinite=1, square_total=4.0, class_counts=((3, 2),)),
    ]

    assert add_up(parts) == OutputSums(
        values=3, nonfinite=1, total=1.0, square_total=4.0, margin_total=0.5, class_counts=((0, 1), (3, 3))
    )
