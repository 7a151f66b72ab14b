"""Serving: workers that answer from verified weights, and take new ones while they answer.

A *worker* is one process with one model. Requests come by the Open Inference Protocol v2, gather in batches that are
padded to a few fixed sizes, and are answered by exactly one version; each answer names its root, its bucket, its
place in it and its generation, and equals the offline answer of that root there, bit for bit. An update is a
transaction: a new checkpoint is verified and built in a second arena beside the traffic (*stage*), made live between
two batches (*flip*), and left again without network or disk (*undo*). What does not verify is refused, and what served
before goes on serving.

A *fleet* is one process that keeps some workers at what an alias names: it resolves and fetches (only it speaks to the
registry), stages everywhere, flips each, restarts who died, and holds back a root that was undone.

    python -m serving --model mnist@champion --port 8000            one worker that follows an alias
    python -m serving fleet --model mnist@champion --workers 2      several
    python -m serving worker --model mnist --folder F --root R --seal S    one worker on one folder

    >>> with Client("http://127.0.0.1:8000", model="mnist") as client:      # doctest: +SKIP
    ...     reply = client.infer({"image": digits})
    ...     reply.root, reply.bucket, reply.outputs["logits"].shape

How the parts stand to each other: ``app`` and ``control`` speak HTTP, ``protocol`` and ``codec`` read and write it,
``batcher`` carries out ``schedule``, ``engine`` runs the model, ``updater`` fills and exchanges the slots of
``weights``, ``release`` opens checkpoint folders, ``service`` ties them into a ``worker``; ``fleet`` keeps ``child``
processes at what a ``source`` says, in a ``fleet_process``; ``guard`` asks control calls for the ``token``.
"""

from serving.client import Client, Reply, Standing
from serving.errors import CallError, QuarantinedError, ServingError, SourceError, TokenError, UnreachableError
from serving.load import Shot, Summary, run_load, summarize
from serving.token import Bearer, Token, find_token

__all__ = [
    "Bearer",
    "CallError",
    "Client",
    "QuarantinedError",
    "Reply",
    "ServingError",
    "Shot",
    "SourceError",
    "Standing",
    "Summary",
    "Token",
    "TokenError",
    "UnreachableError",
    "find_token",
    "run_load",
    "summarize",
]
