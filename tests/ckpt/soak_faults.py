"""Every fault at every call of every action that writes; not run by pytest.

    python -m tests.ckpt.soak_faults        # minutes; needs gcc

Ends with an error at the first outcome that is not as :mod:`tests.ckpt.test_ckpt_faults` promises.
"""

import tempfile
from collections import Counter
from pathlib import Path

from tests.ckpt.faults import ACTIONS, outcomes
from tests.ckpt.test_ckpt_faults import untrue


def main() -> None:
    for name in ACTIONS:
        with tempfile.TemporaryDirectory(prefix="soak-") as work:
            met = outcomes(Path(work), name)
        print(f"{name:10}{len(met):5} faults", dict(Counter(item.state for item in met)), flush=True)
        assert untrue(met) == [], untrue(met)


if __name__ == "__main__":
    main()
