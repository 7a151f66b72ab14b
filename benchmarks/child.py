"""A process that measures: ``python -m benchmarks.child REQUEST``.

The request is JSON: cases with their folders and parameters, and the file for the answer. Each case prepares its
input; then files that earlier runs left unwritten are flushed, the memory mark is set, and one call is timed. The
answer is a JSON list with one object for each case. Nothing else crosses the border between the processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from benchmarks.peak import PROGRAM, growth_bytes, set_mark
from benchmarks.plan import Case


def answer(argument: str, *, find: Callable[[str], Case]) -> None:
    """Measure the cases of a request and write the answer file.

    Args:
        argument: The request, as JSON.
        find: From a case's name to the case.
    """
    request = json.loads(argument)
    measured = [
        measure(find(case["case"]), work=Path(case["work"]), shared=Path(case["shared"]), parameters=case["parameters"])
        for case in request["cases"]
    ]
    Path(request["out"]).write_text(json.dumps(measured))


def measure(case: Case, *, work: Path, shared: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds for one unit, bytes of extra memory at the peak, how memory was read, and the case's own figures."""
    work.mkdir(parents=True, exist_ok=True)
    with case(work=work, shared=shared, **parameters) as call:
        os.sync()
        mark = set_mark()
        started_s = time.perf_counter()
        call.run()
        seconds = time.perf_counter() - started_s
        grown_bytes = growth_bytes(mark)
        return {
            "seconds": seconds / call.units,
            "peak_extra_bytes": grown_bytes if call.peak_bytes is None else call.peak_bytes(),
            "memory_method": mark.method if call.peak_bytes is None else PROGRAM,
            "figures": dict(call.figures()),
        }


def _find(name: str) -> Case:
    module, _, function = name.partition(":")
    return cast(Case, getattr(import_module(module), function))


if __name__ == "__main__":
    answer(sys.argv[1], find=_find)
