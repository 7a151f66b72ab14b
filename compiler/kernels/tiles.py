"""The order in which tiles of a product are computed."""

import triton
import triton.language as tl


@triton.jit
def tile_of(number, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Tiles in groups of ``GROUP`` along M, each group along N: what is near in time is near in both operands."""
    first_m = number // (GROUP * tiles_n) * GROUP
    group = tl.minimum(tiles_m - first_m, GROUP)
    within = number % (GROUP * tiles_n)
    return first_m + within % group, within // group
