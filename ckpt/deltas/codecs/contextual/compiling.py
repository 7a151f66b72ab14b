"""How Numba is told to compile a loop: without what only Python needs."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
Int = int | np.int64  # what whole numbers are inside

# Compiled code counts references to arrays at each use of one, with atomic instructions that take 20 times as long as
# what is done here. None is made or given away inside, so nothing is to be counted.
_UNCOUNTED: dict[str, Any] = {"_nrt": False}


def compiled(function: F) -> F:
    """The function as machine code; it may not make arrays."""
    return cast(F, numba.njit(nogil=True, error_model="numpy", **_UNCOUNTED)(function))
