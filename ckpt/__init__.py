"""Checkpoints: tensors and training state as durable, verified bytes; deltas that turn one into the next.

A checkpoint is a folder: ``manifest.pb`` beside valid safetensors files. The manifest names every tensor, every
storage they view and, for each MiB of it, a CRC-32 and a SHA-256. Its *root* identifies the content, wherever it
lies and however it is sharded; its *seal* adds attachments and metadata. No checkpoint is ever unpickled.

    >>> manifest = ckpt.save(model.state_dict(), "runs/1/step-10")      # doctest: +SKIP
    >>> state = ckpt.load("runs/1/step-10")                             # every byte checked by CRC-32
    >>> with ckpt.open("runs/1/step-10") as checkpoint:                 # single tensors, proved when touched
    ...     head = checkpoint["head.weight"]

Training need not wait for the disk, and a run's folder need not grow for ever.

    >>> pending = ckpt.save_async(model.state_dict(), "runs/1/step-20") # doctest: +SKIP
    >>> ckpt.keep("runs/1", newest=3, every=1000)
    >>> newest = ckpt.latest("runs/1")

A *delta* is a folder too: what has to change to turn one root into another, far smaller than the target where
training changed few bits.

    >>> ckpt.diff("runs/1/step-10", "runs/1/step-20", "delta")          # doctest: +SKIP
    >>> ckpt.apply("runs/1/step-10", "delta", "copy-of-step-20")        # refused unless the root comes out right
    >>> ckpt.invert("delta", "back", base="runs/1/step-10")             # turns step 20 into step 10
    >>> ckpt.squash(["delta", "next"], "both")                          # one delta that does what both do
    >>> patch = ckpt.stage("delta", model.state_dict(), manifest=manifest)  # verified on copies, while the model runs
    >>> patch.apply()                                                   # and written where the model has its weights

A *signature* says who vouches for a checkpoint or a delta. With ``trust``, what nobody of those has signed is refused,
and nothing is exposed that SHA-256 has not proved to be what was signed.

    >>> keys = ckpt.keygen("release.pem")                               # doctest: +SKIP
    >>> ckpt.sign("runs/1/step-20", "release.pem", line="mnist")
    >>> state = ckpt.load("runs/1/step-20", trust=["release.pub.pem"])

What others wrote comes in without a pickle being trusted, and what went bad is mended from any copy.

    >>> ckpt.adopt("model.safetensors")                                 # doctest: +SKIP
    >>> ckpt.convert("old.pt", "runs/0")                                # read in a child process with limits
    >>> ckpt.repair("runs/1/step-20", "https://host/step-20")           # fetches the bad chunks alone

Processes that train one model together save and load it through ``torch.distributed.checkpoint`` with the writer,
reader and planners of ``ckpt.distributed``, which is imported when asked for. Each writes its own pieces.

    >>> ckpt.consolidate("runs/2/step-10", "runs/2/whole")              # doctest: +SKIP

What a reader sees is the old state, the new state, or nothing: folders are written beside their place and renamed
into it. The package stands alone: torch, protobuf, hashes and Ed25519, nothing else of Treering. Formats, byte by byte:
``docs/formats/checkpoint.md`` and ``docs/formats/delta.md``. Command line: ``python -m ckpt --help``.
"""

from ckpt.adoption.adopting import adopt
from ckpt.conversion.converting import convert
from ckpt.deltas.delta import Delta
from ckpt.deltas.inverting import invert
from ckpt.deltas.live.patch import LivePatch
from ckpt.deltas.live.staging import stage, staged
from ckpt.deltas.reader import apply
from ckpt.deltas.squashing import squash
from ckpt.deltas.wire import read_delta
from ckpt.deltas.writer import diff
from ckpt.errors import (
    BadSignatureError,
    BaseNeededError,
    CheckpointError,
    ConversionError,
    CorruptChunkError,
    CorruptFileError,
    CorruptFrameError,
    DeltaError,
    DestinationError,
    ExpiredSignatureError,
    FormatError,
    IntegrityError,
    KeyFileError,
    LiveChunkError,
    LiveMemoryError,
    NotACheckpointError,
    NotInPlaceError,
    RootMismatchError,
    SignatureError,
    SourceError,
    StateMismatchError,
    UnsignedError,
    UnsupportedStateError,
    UntrustedKeyError,
    VersionError,
    WrongBaseError,
    WrongKindError,
    WrongLineError,
    WrongSubjectError,
)
from ckpt.format.manifest import Attachment, Manifest
from ckpt.format.records import TensorRecord
from ckpt.reading.payload import read_manifest
from ckpt.reading.reader import Checkpoint, load, load_into
from ckpt.reading.reader import open_checkpoint as open
from ckpt.reading.report import Report
from ckpt.reading.summary import Summary, inspect
from ckpt.reading.verification import verify
from ckpt.repair.repairing import repair
from ckpt.rewriting.consolidating import consolidate
from ckpt.rewriting.resharding import reshard
from ckpt.saving.pending import Pending, save_async
from ckpt.saving.retention import Retention, keep, latest, steps_to_keep
from ckpt.saving.writer import save
from ckpt.signatures.keys import KeyFiles, keygen
from ckpt.signatures.signing import Signer, sign, signer, unsign
from ckpt.signatures.statements import Statement, StatementKind
from ckpt.signatures.trust import Trust

__all__ = [
    "Attachment",
    "BadSignatureError",
    "BaseNeededError",
    "Checkpoint",
    "CheckpointError",
    "ConversionError",
    "CorruptChunkError",
    "CorruptFileError",
    "CorruptFrameError",
    "Delta",
    "DeltaError",
    "DestinationError",
    "ExpiredSignatureError",
    "FormatError",
    "IntegrityError",
    "KeyFileError",
    "KeyFiles",
    "LiveChunkError",
    "LiveMemoryError",
    "LivePatch",
    "Manifest",
    "NotACheckpointError",
    "NotInPlaceError",
    "Pending",
    "Report",
    "Retention",
    "RootMismatchError",
    "SignatureError",
    "Signer",
    "SourceError",
    "StateMismatchError",
    "Statement",
    "StatementKind",
    "Summary",
    "TensorRecord",
    "Trust",
    "UnsignedError",
    "UnsupportedStateError",
    "UntrustedKeyError",
    "VersionError",
    "WrongBaseError",
    "WrongKindError",
    "WrongLineError",
    "WrongSubjectError",
    "adopt",
    "apply",
    "consolidate",
    "convert",
    "diff",
    "inspect",
    "invert",
    "keep",
    "keygen",
    "latest",
    "load",
    "load_into",
    "open",
    "read_delta",
    "read_manifest",
    "repair",
    "reshard",
    "save",
    "save_async",
    "sign",
    "signer",
    "squash",
    "stage",
    "staged",
    "steps_to_keep",
    "unsign",
    "verify",
]
