"""Judge every variant, also those that the tests leave out: ``python -m tests.compiler.families.soak``.

Each is compiled for one batch size, and again in a group of its own with a batch of any size.
"""

import sys

import torch

from tests.compiler.families.catalogue import ALL
from tests.compiler.families.judgement import GROUP, ROWS, compiled, judge, rows_of


def main() -> int:
    torch.set_num_threads(1)
    wrong = 0
    for start in range(0, len(ALL), GROUP):
        group = ALL[start : start + GROUP]
        for is_dynamic in (False, True):
            here = compiled(group, dynamic=is_dynamic)
            for place, case in enumerate(group):
                try:
                    judge(case, here, place=place, rows=ROWS if is_dynamic else (rows_of(case),))
                except AssertionError as error:
                    wrong += 1
                    print(f"{case.name}, {'any batch' if is_dynamic else 'one batch'}: {error}", flush=True)
        print(f"{start + len(group)} of {len(ALL)} variants, {wrong} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
