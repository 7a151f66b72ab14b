"""The proof that every answer came from exactly the version it names.

Offline, a version's program computes a request's rows again as a worker does: on one thread, in a batch of the bucket's
size, at the place that the answer names (``docs/decisions/0005-answers-name-their-place.md`` says why the place). An
answer is right when its bytes are these; and since the versions differ on every row at every bucket, no answer can pass
for another version's.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import compiler
from flows.errors import WrongAnswerError
from serving.client import Reply
from serving.load import OK, Shot
from serving.release import open_release
from serving.schedule import BUCKETS

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class _Version:
    """A version's program with its weights, and what it has computed.

    ``table`` holds answers, (bucket, place, request) → outputs; ``rows`` all rows in batches of one size, bucket →
    outputs.
    """

    program: compiler.Program
    runner: compiler.Runner
    table: dict[tuple[int, int, int], dict[str, Array]] = field(default_factory=dict)
    rows: dict[int, dict[str, Array]] = field(default_factory=dict)


class Oracle:
    """What each version answers to some fixed requests.

    Args:
        inputs: The program's inputs by name, all rows.
        requests: For each request, which rows it holds.
    """

    def __init__(self, inputs: Mapping[str, torch.Tensor], requests: Sequence[range]) -> None:
        self._inputs = dict(inputs)
        self._requests = tuple(requests)
        self._versions: dict[str, _Version] = {}

    def bodies(self) -> list[dict[str, Array]]:
        """The requests, as a load generator sends them."""
        return [
            {name: rows[request.start : request.stop].numpy() for name, rows in self._inputs.items()}
            for request in self._requests
        ]

    def add(self, folder: Path, *, root: str, seal: str) -> None:
        """Take a version from its checkpoint folder.

        Raises:
            ReleaseRefusedError: it does not verify, or has another root or seal; its program was not run.
        """
        with open_release(folder, root=root, seal=seal) as release:
            program = release.program
            assert isinstance(program, compiler.Program), "a folder's program is the compiler's"
            self._versions[root] = _Version(program, program.bind(release.tensors))

    def check(self, shots: Sequence[Shot]) -> Counter[str]:
        """Compare every answered shot; count them by root.

        Raises:
            WrongAnswerError: an answer differs, or names a root that is not known here.
        """
        counts: Counter[str] = Counter()
        with _one_thread():
            for shot in shots:
                if shot.status == OK and shot.reply is not None:
                    self._compare(shot.request, shot.reply, url=shot.url)
                    counts[shot.reply.root] += 1
        return counts

    def check_reply(self, request: int, reply: Reply, *, url: str) -> None:
        """Compare one answer.

        Raises:
            WrongAnswerError: it differs, or names a root that is not known here.
        """
        with _one_thread():
            self._compare(request, reply, url=url)

    def _compare(self, request: int, reply: Reply, *, url: str) -> None:
        where = f"{url} answered request {request} from root {reply.root}, bucket {reply.bucket}, place {reply.place}"
        rows = len(self._requests[request])
        if reply.root not in self._versions or not 0 <= reply.place <= reply.bucket - rows:
            known = ", ".join(self._versions)
            raise WrongAnswerError(f"{where}; expected {rows} rows inside a bucket, and one of the roots {known}.")
        for name, expected in self._answer(reply.root, request, bucket=reply.bucket, place=reply.place).items():
            if reply.outputs[name].tobytes() != expected.tobytes():
                raise WrongAnswerError(f"{where}, with an output '{name}' that is not what this root computes there.")

    def _answer(self, root: str, request: int, *, bucket: int, place: int) -> dict[str, Array]:
        version, key = self._versions[root], (bucket, place, request)
        if key not in version.table:
            version.table[key] = self._compute(version, self._requests[request], bucket=bucket, place=place)
        return version.table[key]

    def _compute(self, version: _Version, rows: range, *, bucket: int, place: int) -> dict[str, Array]:
        batch = [
            _placed(self._inputs[spec.name][rows.start : rows.stop], bucket=bucket, place=place)
            for spec in version.program.inputs
        ]
        outputs = zip(version.program.outputs, version.runner(*batch), strict=True)
        return {spec.name: output[place : place + len(rows)].numpy().copy() for spec, output in outputs}

    def require_all_different(self) -> None:
        """Every two versions differ on every row at every bucket, or the proof would prove less than it says.

        Raises:
            WrongAnswerError: two versions answer some row alike.
        """
        with _one_thread():
            for first, second in itertools.combinations(self._versions, 2):
                for bucket in BUCKETS:
                    self._differ(first, second, bucket)

    def _differ(self, first: str, second: str, bucket: int) -> None:
        others = self._all_rows(second, bucket)
        for name, rows in self._all_rows(first, bucket).items():
            alike = np.flatnonzero((rows == others[name]).reshape(len(rows), -1).all(axis=1))
            if len(alike):
                raise WrongAnswerError(
                    f"{first} and {second} give the same '{name}' for row {alike[0]} at bucket {bucket}; expected "
                    "versions that differ on every row."
                )

    def _all_rows(self, root: str, bucket: int) -> dict[str, Array]:
        """Every row once, a full bucket at a time: what lies beside a row does not change it."""
        version = self._versions[root]
        if bucket not in version.rows:
            count = len(next(iter(self._inputs.values())))
            chunks = [range(start, min(start + bucket, count)) for start in range(0, count, bucket)]
            parts = [self._compute(version, chunk, bucket=bucket, place=0) for chunk in chunks]
            version.rows[bucket] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return version.rows[bucket]


def _placed(rows: torch.Tensor, *, bucket: int, place: int) -> torch.Tensor:
    """The rows at their place in a batch of zeros."""
    batch = torch.zeros((bucket, *rows.shape[1:]), dtype=rows.dtype)
    batch[place : place + len(rows)] = rows
    return batch


@contextmanager
def _one_thread() -> Iterator[None]:
    """As workers compute: kernels may split work, and so round, differently on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
