"""A second reader of the checkpoint format: written from ``checkpoint.md`` alone, with the standard library alone.

It shares no line with ``ckpt`` and exists to be compared with it: whatever a checkpoint holds, both give the same
digests, tensors and state, or refuse it for the same reason. It proves every byte, keeps all of them in memory, and is
as slow as plain Python is; use ``ckpt`` to work with checkpoints.

    from treering_reader import FaultError, read

    checkpoint = read("runs/42/step-1000")
    checkpoint.root, checkpoint.state, checkpoint.tensors["w"].content

With ``trust`` a trusted key must have signed it; without, signatures are checked for their form alone.
"""

from treering_reader.checkpoint import Checkpoint, Loaded, read
from treering_reader.faults import FaultError
from treering_reader.keys import public_key
from treering_reader.rendering import rendered
from treering_reader.signatures import Trust

__all__ = ["Checkpoint", "FaultError", "Loaded", "Trust", "public_key", "read", "rendered"]
