"""The proof that every answer came from exactly the version it names: an oracle table [root][bucket][row].

Offline, each version's program computes every row at every bucket size, as a worker does: alone in its process, on one
thread. An answer is right when its bytes are those of the table under the root and the bucket that it names; and since
the versions differ on every row, no answer can pass for another version's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import ckpt
import compiler
from flows.errors import WrongAnswerError
from serving.client import Reply
from serving.load import OK, Shot
from serving.release import PROGRAM_FOLDER
from serving.schedule import BUCKETS

Array = NDArray[np.generic]


class Oracle:
    """What each version answers to some fixed requests.

    Args:
        inputs: The program's inputs by name, all rows.
        requests: For each request, which rows it holds.
    """

    def __init__(self, inputs: Mapping[str, torch.Tensor], requests: Sequence[range]) -> None:
        self._inputs = dict(inputs)
        self._requests = tuple(requests)
        self._tables: dict[str, dict[int, dict[str, Array]]] = {}

    def bodies(self) -> list[dict[str, Array]]:
        """The requests, as a load generator sends them."""
        return [
            {name: rows[request.start : request.stop].numpy() for name, rows in self._inputs.items()}
            for request in self._requests
        ]

    def add(self, folder: Path) -> str:
        """Compute a version's table from its checkpoint folder; return its root."""
        program = compiler.load(folder / PROGRAM_FOLDER)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ckpt.open(folder, verify="sha256") as checkpoint:
                runner = program.bind({spec.name: checkpoint[spec.name] for spec in program.requires})
                table = {bucket: self._at(bucket, program, runner) for bucket in BUCKETS}
        finally:
            torch.set_num_threads(threads)
        self._tables[checkpoint.root] = table
        return checkpoint.root

    def _at(self, bucket: int, program: compiler.Program, runner: compiler.Runner) -> dict[str, Array]:
        parts: list[tuple[torch.Tensor, ...]] = []
        rows = len(next(iter(self._inputs.values())))
        for start in range(0, rows, bucket):
            batch = [_padded(self._inputs[spec.name][start : start + bucket], bucket) for spec in program.inputs]
            parts.append(tuple(output.clone() for output in runner(*batch)))
        return {
            spec.name: torch.cat([part[index] for part in parts])[:rows].numpy()
            for index, spec in enumerate(program.outputs)
        }

    def check(self, shots: Sequence[Shot]) -> Counter[str]:
        """Compare every answered shot with the table; count them by root.

        Raises:
            WrongAnswerError: an answer differs, or names a root that is not in the table.
        """
        counts: Counter[str] = Counter()
        for shot in shots:
            if shot.status == OK and shot.reply is not None:
                self.check_reply(shot.request, shot.reply, url=shot.url)
                counts[shot.reply.root] += 1
        return counts

    def check_reply(self, request: int, reply: Reply, *, url: str) -> None:
        """Compare one answer with the table.

        Raises:
            WrongAnswerError: it differs, or names a root that is not in the table.
        """
        table = self._tables.get(reply.root, {}).get(reply.bucket)
        if table is None:
            raise WrongAnswerError(
                f"{url} answered request {request} from root {reply.root} at bucket {reply.bucket}; expected one of "
                f"{', '.join(self._tables)} at {BUCKETS}."
            )
        rows = self._requests[request]
        for name, expected in table.items():
            if reply.outputs[name].tobytes() != expected[rows.start : rows.stop].tobytes():
                raise WrongAnswerError(
                    f"{url} answered request {request} (rows {rows.start}–{rows.stop - 1}) with an output '{name}' "
                    f"that is not what root {reply.root} computes at bucket {reply.bucket}."
                )

    def require_all_different(self) -> None:
        """Every two versions differ on every row at every bucket, or the proof would prove less than it says.

        Raises:
            WrongAnswerError: two versions answer some row alike.
        """
        roots = list(self._tables)
        for index, first in enumerate(roots):
            for second in roots[index + 1 :]:
                for bucket in BUCKETS:
                    self._differ(first, second, bucket)

    def _differ(self, first: str, second: str, bucket: int) -> None:
        for name, rows in self._tables[first][bucket].items():
            others = self._tables[second][bucket][name]
            alike = np.flatnonzero((rows == others).reshape(len(rows), -1).all(axis=1))
            if len(alike):
                raise WrongAnswerError(
                    f"{first} and {second} give the same '{name}' for row {alike[0]} at bucket {bucket}; expected "
                    "versions that differ on every row."
                )


def _padded(rows: torch.Tensor, bucket: int) -> torch.Tensor:
    """Rows and then zeros, up to the bucket's size."""
    padded = torch.zeros((bucket, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded
