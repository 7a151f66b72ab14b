"""Random bfloat16 weights, some of which move one unit in the last place up or down."""

from collections.abc import Iterator

from benchmarks.cases.weights import TENSOR_BYTES, bfloat16_weights, stepped
from benchmarks.pairs import Half


def stepped_weights(*, percent: float, size_bytes: int) -> Iterator[Half]:
    """Tensors of 8 MiB, each drawn by a seed of its own; held once, and stepped where they lie.

    Args:
        percent: Of the elements that move.
        size_bytes: Of all tensors, a multiple of 8 MiB.
    """
    count = size_bytes // TENSOR_BYTES
    state = {f"layers.{number}.weight": bfloat16_weights(TENSOR_BYTES, seed=number) for number in range(count)}
    name = f"synthetic-bf16-{percent}%"
    yield name, "base", state
    for number, weights in enumerate(state.values()):
        weights.copy_(stepped(weights, share=percent / 100, seed=count + number))
    yield name, "target", state
