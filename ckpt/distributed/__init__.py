"""Checkpoints of models that several processes hold together: ``torch.distributed.checkpoint`` (DCP) in this format.

Each process calls the same functions with its own state: a dict of tensors, DTensors (FSDP2, tensor parallel),
ShardedTensors and plain values, nested as for :func:`ckpt.save`. Each writes the pieces it holds; what is replicated is
shared out among those that hold it. Nothing is pickled to disk. DCP's own messages between the processes are pickled.

    >>> ckpt.distributed.save({"model": model.state_dict(), "step": 10}, "runs/1/step-10")      # doctest: +SKIP
    >>> ckpt.distributed.load(state, "runs/1/step-10")              # in place, whatever the shards are now

Or with DCP's functions, its ``async_save`` among them:

    >>> dcp.save(state, storage_writer=Writer("runs/1/step-10"), planner=SavePlanner())         # doctest: +SKIP
    >>> dcp.load(state, storage_reader=Reader("runs/1/step-10"), planner=LoadPlanner())

The path is on a file system that all processes share. What stands there afterwards is a checkpoint like any other:
:func:`ckpt.load`, ``open`` and ``verify`` read it, and :func:`ckpt.consolidate` writes its plain form. A save that
fails, because a process was killed or a disk is full, leaves the path as it was, unless all was done but to say so.

Values that are no tensors are those of the first process that has them; mappings are united key by key, so that stages
of a pipeline, each with keys of its own, make one state. A tensor under one name that differs between processes is
refused where its dtype, shape or memory differs; that its elements differ cannot be seen.
"""

from ckpt.distributed.calls import load, save
from ckpt.distributed.loading import LoadPlanner, Reader
from ckpt.distributed.saving import Saved, SavePlanner, Writer

__all__ = ["LoadPlanner", "Reader", "SavePlanner", "Saved", "Writer", "load", "save"]
