"""The writing half of DCP: a planner that describes what each process holds, and a writer of payload files of ours.

The order of calls is DCP's: every process describes what it holds; the coordinator agrees with all of them, opens the
temporary folder and tells each what to write; each writes its own files, fsynced and hashed; the coordinator makes the
manifest of their digests and puts the folder in place. Nothing appears at the path before; no file is a pickle.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint import planner, storage
from torch.futures import Future

from ckpt.disk.commit import staged
from ckpt.disk.hashing import Hasher
from ckpt.distributed.described import tensors_of
from ckpt.distributed.holdings import Agreement, Holding, Key, agreed, holding_of
from ckpt.errors import DestinationError
from ckpt.format.digests import Chunks
from ckpt.format.manifest import FileRecord, Manifest, Placement
from ckpt.format.records import views_of
from ckpt.format.shards import SHARD_BYTES, Shard, check_shard_bytes, plan
from ckpt.format.state import flatten
from ckpt.saving.memory import Source
from ckpt.saving.writer import PRODUCER, complete, file_blocks, foreign, metadata_of, write_attachments, write_shard
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer, as_signer
from ckpt.signatures.statements import StatementKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a save has put in place; every process has it. ``root`` and ``seal`` are ``sha256:…``."""

    path: Path
    root: str
    seal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A payload file that a process is to write: its number, and what to put into it."""

    number: int
    shard: Shard
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    folder: Path
    files: tuple[_Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    number: int
    record: FileRecord
    shard: Shard
    chunks: tuple[Chunks, ...]


class _Storage(dcp.StorageMeta):
    """Tells the planner that the writer beside it is ours."""


class SavePlanner(planner.SavePlanner):
    """Takes any state that :func:`ckpt.save` takes, and DTensors and ShardedTensors in it."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: dcp.StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        if not isinstance(storage_meta, _Storage):
            raise TypeError(
                "ckpt.distributed.SavePlanner plans for ckpt.distributed.Writer; pass one as storage_writer"
            )
        self._holding, self._sources = holding_of(*flatten(state_dict))

    def create_local_plan(self) -> planner.SavePlan:
        return planner.SavePlan([], planner_data=self._holding)

    def create_global_plan(self, all_plans: list[planner.SavePlan]) -> tuple[list[planner.SavePlan], dcp.Metadata]:
        agreement = agreed([plan.planner_data for plan in all_plans])
        plans = [planner.SavePlan([], planner_data=agreement) for _ in all_plans]
        return plans, dcp.Metadata(tensors_of(agreement.records, agreement.pieces))

    def finish_plan(self, new_plan: planner.SavePlan) -> planner.SavePlan:
        return new_plan

    def resolve_data(self, write_item: planner.WriteItem) -> NoReturn:
        raise TypeError("ckpt.distributed.SavePlanner has no items; expected ckpt.distributed.Writer to write for it")

    def source(self, key: Key) -> Source:
        """The bytes of a storage that this process holds."""
        return self._sources[key]


class Writer(storage.StorageWriter):
    """Writes one checkpoint together with the writers of the other processes.

    Only the coordinator's metadata, attachments and signer count. An object may be used again, for the same path or,
    through ``checkpoint_id``, for another.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        metadata: Mapping[str, str] | None = None,
        attachments: Mapping[str, Path | str] | None = None,
        shard_bytes: int = SHARD_BYTES,
        sign: Signer | PrivateKey | None = None,
        overwrite: bool = False,
    ) -> None:
        """Look at nothing yet.

        Args:
            path: The folder to be, on a file system that all processes share.
            metadata, attachments, shard_bytes, sign, overwrite: As for :func:`ckpt.save`.
        """
        check_shard_bytes(shard_bytes)
        self._path = Path(path)
        self._metadata, self._attachments = metadata_of(metadata), dict(attachments or {})
        self._shard_bytes, self._overwrite = shard_bytes, overwrite
        self._signer = None if sign is None else as_signer(sign)
        self._agreement: Agreement | None = None
        self._open = ExitStack()  # closing it puts the folder in place; forgetting it removes the folder
        self._folder = Path()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.abandon()
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in str(checkpoint_id)

    def storage_meta(self) -> dcp.StorageMeta:
        return _Storage(checkpoint_id=self._path)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_collectives", True) is False:
            raise ValueError("use_collectives is False; expected True, since one process makes the manifest of all")
        self.abandon()

    def prepare_local_plan(self, plan: planner.SavePlan) -> planner.SavePlan:
        if not isinstance(plan.planner_data, Holding):
            raise TypeError("ckpt.distributed.Writer writes what its own planner plans; pass planner=SavePlanner()")
        return plan

    def prepare_global_plan(self, plans: list[planner.SavePlan]) -> list[planner.SavePlan]:
        agreement: Agreement = plans[0].planner_data
        shards = plan(
            views_of(agreement.records, agreement.pieces),
            agreement.sizes,
            shard_bytes=self._shard_bytes,
            writers=agreement.writers,
        )
        tasks = [
            _Task(number=number, shard=shard, keys=tuple(agreement.keys[index] for index in shard.storages))
            for number, shard in enumerate(shards)
        ]
        of_rank: list[list[_Task]] = [[] for _ in plans]
        for task in tasks:
            of_rank[task.shard.writer].append(task)
        self._agreement = agreement
        self._folder = self._open.enter_context(staged(self._path, overwrite=self._overwrite, owns=foreign))
        return [planner.SavePlan([], storage_data=_Tasks(folder=self._folder, files=tuple(own))) for own in of_rank]

    def write_data(self, plan: planner.SavePlan, planner: planner.SavePlanner) -> Future[list[storage.WriteResult]]:
        assert isinstance(planner, SavePlanner), "its plan was refused otherwise"
        tasks: _Tasks = plan.storage_data
        if not tasks.folder.is_dir():
            raise DestinationError(
                f"'{tasks.folder}', which the coordinator has made, is not there in this process: expected a file "
                "system that all processes share. Save to one, or have it mounted at one place everywhere.",
                path=tasks.folder,
            )
        with Hasher(0, None) as hasher:
            results = [_write(tasks.folder, task, planner, hasher) for task in tasks.files]
        future: Future[list[storage.WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: dcp.Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Make the manifest, put the folder in place, and say of it in ``metadata.storage_data`` what was saved."""
        agreement = self._agreement
        assert agreement is not None, "prepare_global_plan comes first"
        written = sorted((result.storage_data for own in results for result in own), key=lambda file: file.number)
        attachments = {name: file_blocks(Path(source)) for name, source in self._attachments.items()}
        opened, self._open = self._open, ExitStack()
        with opened, Hasher(0, None) as hasher:
            manifest = _manifest(agreement, written)
            made = complete(
                self._folder,
                replace(
                    manifest,
                    attachments=write_attachments(self._folder, attachments, hasher),
                    metadata=self._metadata,
                ),
                signatures=lambda made: (
                    ()
                    if self._signer is None
                    else (self._signer.signed(StatementKind.CHECKPOINT, made.seal, self._path),)
                ),
            )
        metadata.storage_data = Saved(path=self._path, root=made.root, seal=made.seal)

    def abandon(self) -> None:
        """Remove what a save that failed has left. The next save does it too, in whatever process."""
        opened, self._open = self._open, ExitStack()
        with suppress(_AbandonedError), opened:
            raise _AbandonedError


class _AbandonedError(Exception):
    """Ends the block in which a folder would be put in place."""


def _write(folder: Path, task: _Task, planner: SavePlanner, hasher: Hasher) -> storage.WriteResult:
    sources = [planner.source(key) for key in task.keys]
    record, chunks = write_shard(folder, task.number, task.shard, sources, hasher)
    written = _Written(number=task.number, record=record, shard=task.shard, chunks=tuple(chunks))
    return storage.WriteResult(
        index=dcp.MetadataIndex(record.name), size_in_bytes=record.size_bytes, storage_data=written
    )


def _manifest(agreement: Agreement, written: Sequence[_Written]) -> Manifest:
    """What the files of all processes hold."""
    places: dict[int, tuple[Placement, Chunks]] = {}
    for file in written:
        for index, offset, chunks in zip(file.shard.storages, file.shard.offsets, file.chunks, strict=True):
            places[index] = Placement(file=file.number, offset=offset), chunks
    return Manifest(
        storages=tuple(places[index][1] for index in range(len(agreement.sizes))),
        placements=tuple(places[index][0] for index in range(len(agreement.sizes))),
        tensors=agreement.records,
        state=agreement.state,
        files=tuple(file.record for file in written),
        producer=PRODUCER,
        pieces=agreement.pieces,
    )
