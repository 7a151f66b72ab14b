"""The reading half of DCP: a planner that knows which boxes a state needs, and a reader that proves and copies them.

Each process opens the checkpoint for itself and reads only chunks under the boxes it needs, from whatever pieces they
lie in. All of them are proved before the first one is copied, so a process whose bytes are bad changes nothing.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint import planner, storage
from torch.futures import Future

from ckpt.distributed.described import tensors_of
from ckpt.distributed.requests import Request, Wanted, request
from ckpt.errors import RootMismatchError
from ckpt.format.manifest import Manifest
from ckpt.reading.payload import Algorithm, Payload, open_payload
from ckpt.reading.reader import Verify, level_of
from ckpt.reading.tensors import Tensors
from ckpt.signatures.trust import Trusted, as_trust

_ALGORITHMS: dict[Verify, Algorithm | None] = {"none": None, "crc32": "crc32", "lazy": "sha256", "sha256": "sha256"}


@dataclass(frozen=True, slots=True)
class _Opened:
    """What the reader hands to the planner: a manifest, or why there is none.

    DCP would hide what ``read_metadata`` raises behind an AssertionError, so the planner raises it.
    """

    path: Path
    manifest: Manifest | Exception


class LoadPlanner(planner.LoadPlanner):
    """Loads into tensors, DTensors and ShardedTensors where they lie, and replaces the other values of a state."""

    def __init__(self, *, allow_partial_load: bool = False) -> None:
        """``allow_partial_load`` leaves alone what the checkpoint does not have, instead of refusing it."""
        self._partial = allow_partial_load

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: dcp.Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        opened = metadata.planner_data if metadata is not None else None
        if not isinstance(opened, _Opened):
            raise TypeError(
                "ckpt.distributed.LoadPlanner plans for ckpt.distributed.Reader; pass one as storage_reader"
            )
        if isinstance(opened.manifest, Exception):
            raise opened.manifest
        self.request: Request = request(state_dict, opened.manifest, opened.path, partial=self._partial)

    def create_local_plan(self) -> planner.LoadPlan:
        return planner.LoadPlan([])

    def create_global_plan(self, global_plan: list[planner.LoadPlan]) -> list[planner.LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: planner.LoadPlan) -> planner.LoadPlan:
        return central_plan

    def load_bytes(self, read_item: planner.ReadItem, value: object) -> NoReturn:
        raise _not_used()

    def resolve_tensor(self, read_item: planner.ReadItem) -> NoReturn:
        raise _not_used()

    def commit_tensor(self, read_item: planner.ReadItem, tensor: object) -> NoReturn:
        raise _not_used()


def _not_used() -> TypeError:
    return TypeError("ckpt.distributed.LoadPlanner has no items; expected ckpt.distributed.Reader to read for it")


class Reader(storage.StorageReader):
    """Reads a checkpoint of this format, with pieces or without, into whatever shards a process has."""

    def __init__(
        self,
        path: Path | str,
        *,
        verify: Verify | None = None,
        root: str | None = None,
        trust: Trusted | None = None,
    ) -> None:
        """Look at nothing yet; the arguments are those of :func:`ckpt.load`, ``"lazy"`` means ``"sha256"``."""
        self._trust = as_trust(trust)
        default = "crc32" if self._trust is None else "sha256"
        self._level = level_of(default if verify is None else verify, self._trust)
        self._path, self._root = Path(path), root
        self._payload: Payload | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._payload = None
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in str(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        try:
            self._payload = open_payload(self._path, trust=self._trust)
            found = self._payload.manifest
            if self._root is not None and found.root != self._root:
                raise RootMismatchError(path=self._path, found=found.root, expected=self._root)
        except Exception as error:  # noqa: BLE001 - the planner raises it, where DCP hands it to every process
            return dcp.Metadata({}, planner_data=_Opened(self._path, error))
        return dcp.Metadata(tensors_of(found.tensors, found.pieces), planner_data=_Opened(self._path, found))

    def set_up_storage_reader(self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the metadata was read by this reader."""

    def prepare_local_plan(self, plan: planner.LoadPlan) -> planner.LoadPlan:
        plan.storage_data = self._opened().manifest.seal
        return plan

    def prepare_global_plan(self, plans: list[planner.LoadPlan]) -> list[planner.LoadPlan]:
        """Refuse what other processes have opened when it is another checkpoint: one that was just put there."""
        for plan in plans:
            if plan.storage_data != plans[0].storage_data:
                raise RootMismatchError(path=self._path, found=plan.storage_data, expected=plans[0].storage_data)
        return plans

    def read_data(self, plan: planner.LoadPlan, planner: planner.LoadPlanner) -> Future[None]:
        if not isinstance(planner, LoadPlanner):
            raise TypeError("ckpt.distributed.Reader reads what its own planner asks for; pass planner=LoadPlanner()")
        tensors = Tensors(self._opened(), algorithm=_ALGORITHMS[self._level])
        wanted = planner.request.wanted
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ckpt-load") as pool:
            _all(pool, wanted, lambda item: tensors.prove(item.record, item.box))
            _all(pool, wanted, lambda item: tensors.box(item.record, item.box, item.into))
        for change in planner.request.changes:
            change()
        self._payload = None
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _opened(self) -> Payload:
        assert self._payload is not None, "read_metadata comes first"
        return self._payload


def _all(pool: ThreadPoolExecutor, wanted: list[Wanted], work: Callable[[Wanted], None]) -> None:
    for _ in pool.map(work, wanted):
        pass
