"""Saving and loading in one call, with errors as they are everywhere else in this package.

DCP makes a plain dict of the outermost mapping and sorts its keys. Here the state is handed over inside one, so that it
stays what it is: an OrderedDict with its metadata, or a dict with whole numbers as keys.
"""

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from ckpt.distributed.loading import LoadPlanner, Reader
from ckpt.distributed.saving import Saved, SavePlanner, Writer
from ckpt.format.shards import SHARD_BYTES
from ckpt.reading.reader import Verify
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer
from ckpt.signatures.trust import Trusted

_STATE = "state"  # the key under which a whole state passes through DCP


class _SavesWhole(SavePlanner):
    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        super().set_up_planner(state_dict[_STATE], storage_meta, is_coordinator)


class _LoadsWhole(LoadPlanner):
    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict[_STATE], metadata, is_coordinator)


def save(
    state: Mapping[Any, Any],
    path: Path | str,
    *,
    metadata: Mapping[str, str] | None = None,
    attachments: Mapping[str, Path | str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    sign: Signer | PrivateKey | None = None,
    overwrite: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> Saved:
    """Write the state that the processes of a group hold together, as one checkpoint.

    Args:
        state: What this process holds of it.
        path: The folder to be, on a file system that all of them share.
        metadata, attachments, shard_bytes, sign, overwrite: As for :func:`ckpt.save`; those of the first process count.
        process_group: Who saves; all processes unless stated. Without ``torch.distributed``, this process alone.

    Returns:
        Root and seal, in every process. With pieces, the root is one of its own:
        ``docs/decisions/0011-pieces-have-a-root-of-their-own.md``.

    Raises:
        UnsupportedStateError: a value cannot be stored, or the processes do not describe one state.
        DestinationError: ``path`` exists and may not be replaced, or is not on a shared file system.
        RuntimeError: of ``torch.distributed``, where a process has ended meanwhile; at ``path`` stands what stood there
            or, had the coordinator come to the end of its work, the new checkpoint.
    """
    writer = Writer(
        path, metadata=metadata, attachments=attachments, shard_bytes=shard_bytes, sign=sign, overwrite=overwrite
    )
    with _plain_errors():
        try:
            made = state_dict_saver.save(
                {_STATE: state},
                storage_writer=writer,
                planner=_SavesWhole(),
                process_group=process_group,
                no_dist=_alone(),
            )
        finally:
            writer.abandon()
    saved: Saved = made.storage_data  # type: ignore[union-attr, unused-ignore]
    return saved


def load(
    state: MutableMapping[Any, Any],
    path: Path | str,
    *,
    verify: Verify | None = None,
    root: str | None = None,
    trust: Trusted | None = None,
    allow_partial_load: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Read a checkpoint into a state: tensors are filled where they lie, other values replaced.

    Args:
        state: What is wanted, in the form it was saved in; shards may be others. What is stored besides is not read. An
            empty mapping is replaced by the stored one, where that holds no tensors.
        path: A checkpoint of this format, however it was written.
        verify, root, trust: As for :func:`ckpt.load`.
        allow_partial_load: Leave alone what is not stored, instead of refusing it.
        process_group: Who loads; all processes unless stated. Without ``torch.distributed``, this process alone.

    Raises:
        StateMismatchError: a key is missing, or a dtype, shape or kind differs; nothing was changed.
        NotACheckpointError, FormatError, IntegrityError, SignatureError: as :func:`ckpt.load`; where bytes are bad, the
            state of the process that found them is as it was.
    """
    reader = Reader(path, verify=verify, root=root, trust=trust)
    with _plain_errors():
        state_dict_loader.load(
            {_STATE: state},
            storage_reader=reader,
            planner=_LoadsWhole(allow_partial_load=allow_partial_load),
            process_group=process_group,
            no_dist=_alone(),
        )


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise what went wrong, as it was raised in the process where it did, in place of DCP's list of failures."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
            if not _alone():
                cause.add_note(f"raised by rank {rank}; the ranks that failed: {sorted(error.failures)}")
            raise cause from error
