"""Read checkpoints: all of it, some tensors, or one slice; verified before anything is exposed.

``verify`` says how: ``"crc32"`` checks every byte that is loaded at memory speed (accidents), ``"sha256"`` proves
it against the manifest, ``"lazy"`` proves each chunk when it is first touched, ``"none"`` trusts the disk. Mapped
tensors are verified as they are at load; ``mmap=False`` verifies the very copy that it returns. With ``trust``, a
trusted key must have signed what lies there and SHA-256 proves all that is exposed: a weaker level is an error.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, is_lazy

from ckpt.collector import without_collection
from ckpt.disk.folder import Folder, reading
from ckpt.errors import NotACheckpointError, RootMismatchError
from ckpt.format.dtypes import NARROW, bits, name_of
from ckpt.format.manifest import Manifest
from ckpt.format.names import MANIFEST_NAME
from ckpt.format.records import TensorRecord
from ckpt.format.state import unflatten
from ckpt.reading.payload import Algorithm, Payload, check_all, faults_in_attachment, open_payload
from ckpt.reading.tensors import Tensors
from ckpt.signatures.statements import Statement
from ckpt.signatures.trust import Trust, Trusted, as_trust

Verify = Literal["none", "crc32", "lazy", "sha256"]
VERIFY_LEVELS = ("none", "crc32", "lazy", "sha256")
PROVING_LEVELS = ("lazy", "sha256")
_ALGORITHMS: dict[str, Algorithm | None] = {"none": None, "crc32": "crc32", "sha256": "sha256"}


def load(
    path: Path | str,
    *,
    verify: Verify | None = None,
    root: str | None = None,
    trust: Trusted | None = None,
    device: torch.device | str = "cpu",
    mmap: bool = True,
    keys: Collection[str] | None = None,
) -> Any:
    """Give back the state that was saved.

    Args:
        path: A checkpoint folder.
        verify: How bytes are checked before they are exposed; see the module's head. ``"crc32"`` unless stated, with
            ``trust`` ``"sha256"``. ``"lazy"`` means ``"sha256"`` here, since everything is touched.
        root: The root that must be there, ``"sha256:…"``; anything else is refused.
        trust: Whose signature must be there: a :class:`Trust`, or public keys as PEM files or objects.
        device: Where the tensors go.
        mmap: Map the files instead of reading them; tensors are writable and changes stay private.
        keys: Only these tensors, as a flat dict name → tensor.

    Returns:
        The state, or with ``keys`` a dict of tensors. Tensors that shared memory share it again.

    Raises:
        NotACheckpointError, FormatError, IntegrityError, SignatureError: see :mod:`ckpt.errors`; nothing is returned
            then.
        KeyError: one of ``keys`` is not there.
        ValueError: an unknown level, or a weaker one than ``trust`` allows; ``keys`` is text.
    """
    trusted = as_trust(trust)
    default = "crc32" if trusted is None else "sha256"
    level = level_of(default if verify is None else verify, trusted)
    with closing(_payload(path, root=root, trust=trusted, mmap=mmap)) as payload:
        return Checkpoint(payload, lazy=False)._load("sha256" if level == "lazy" else level, torch.device(device), keys)


def load_into(
    module: torch.nn.Module,
    path: Path | str,
    *,
    verify: Verify | None = None,
    root: str | None = None,
    trust: Trusted | None = None,
    strict: bool = True,
) -> None:
    """Copy a saved state dict into a module's parameters and buffers, in place.

    Args:
        module: Gets the values; addresses stay.
        path: A checkpoint of a flat state dict.
        verify, root, trust: As for :func:`load`.
        strict: Refuse missing and unexpected names.

    Raises:
        RuntimeError: names or shapes differ (torch's own message lists them), or the module is on the meta device,
            or an integer of less than 8 bits meets another dtype; nothing was copied.
    """
    state = load(path, verify=verify, root=root, trust=trust)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TypeError(
            f"'{path}' holds a nested state, expected a flat state dict; load it with ckpt.load and pass the part for "
            "this module to module.load_state_dict"
        )
    expected = module.state_dict()
    own = {name: value for name, value in expected.items() if not is_lazy(value)}
    _refuse_what_does_not_fit(own, state, path)
    if strict and state.keys() != expected.keys():
        _try_without_memory(module, state)
    for name in (name for name in state if name in own and name_of(state[name].dtype) in NARROW):
        bits(own[name]).copy_(bits(state[name]))
        state[name] = own[name]  # torch has no way to copy it, and passes over what lies there already
    module.load_state_dict(state, strict=strict)


def _refuse_what_does_not_fit(own: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path | str) -> None:
    """Before torch copies the tensors that do fit; into those on the meta device it would copy nothing, and warn."""
    both = [name for name in state if name in own]
    if empty := [name for name in both if own[name].is_meta]:
        raise RuntimeError(
            f"'{empty[0]}' of the module is on the meta device, which has no memory; nothing was copied. Call "
            "module.to_empty(device=…) first."
        )
    if wrong := [name for name in both if own[name].shape != state[name].shape]:
        name = wrong[0]
        raise RuntimeError(
            f"tensor '{name}' in '{path}' has shape {tuple(state[name].shape)}, the module expects "
            f"{tuple(own[name].shape)}; nothing was copied. Build the module as it was when it was saved."
        )
    for name in both:
        stored, expected = state[name].dtype, own[name].dtype
        if stored != expected and not {name_of(stored), name_of(expected)}.isdisjoint(NARROW):
            raise RuntimeError(
                f"tensor '{name}' in '{path}' has the dtype {stored}, the module expects {expected}; torch has no way "
                "between them, and nothing was copied. Build the module as it was when it was saved."
            )


def _try_without_memory(module: torch.nn.Module, state: dict[str, Tensor]) -> None:
    """Have torch name what is missing and what is unexpected; on the module itself it would copy the rest first.

    Names may differ and yet fit, by a module's own way to load.
    """
    tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if not is_lazy(tensor)]
    twin = copy.deepcopy(module, {id(tensor): _without_memory(tensor) for tensor in tensors})
    values = copy.copy(state)
    values.update({name: _without_memory(value) for name, value in state.items()})
    twin.load_state_dict(values)


def _without_memory(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    return Parameter(empty, requires_grad=False) if isinstance(tensor, Parameter) else empty


def open_checkpoint(
    path: Path | str,
    *,
    verify: Verify = "lazy",
    root: str | None = None,
    trust: Trusted | None = None,
    mmap: bool = True,
) -> "Checkpoint":
    """Open a checkpoint for reading single tensors and slices; exported as ``ckpt.open``.

    Args:
        path: A checkpoint folder.
        verify: ``"lazy"`` proves each chunk by SHA-256 when it is first touched; the other levels check all now.
        root: The root that must be there.
        trust, mmap: As for :func:`load`.

    Raises:
        RootMismatchError: another root than ``root``.
        SignatureError: nobody who is trusted has signed it.
        ValueError: an unknown level, or a weaker one than ``trust`` allows.
    """
    trusted = as_trust(trust)
    level = level_of(verify, trusted)
    with closing(_payload(path, root=root, trust=trusted, mmap=mmap)) as payload:
        _check(payload, "none" if level == "lazy" else level)
    return Checkpoint(replace(payload, unread=()), lazy=level == "lazy")


def _payload(path: Path | str, *, root: str | None, trust: Trust | None, mmap: bool) -> Payload:
    payload = open_payload(path, mapped=mmap, trust=trust)
    if root is not None and payload.manifest.root != root:
        payload.close()
        raise RootMismatchError(path=Path(path), found=payload.manifest.root, expected=root)
    return payload


def _check(payload: Payload, level: Verify, storages: list[int] | None = None) -> None:
    """Check storages, all by default, and read them where they are not mapped."""
    if level == "none" and not payload.unread:
        return
    for fault in check_all(payload, _ALGORITHMS[level], storages):
        raise fault


def level_of(verify: str, trust: Trust | None) -> Verify:
    if verify not in VERIFY_LEVELS:
        raise ValueError(f"verify is '{verify}'; expected one of {', '.join(VERIFY_LEVELS)}")
    if trust is not None and verify not in PROVING_LEVELS:
        raise ValueError(
            f"verify is '{verify}' with trust; expected one of {', '.join(PROVING_LEVELS)}, since a signature vouches "
            "for what SHA-256 proves and for nothing else"
        )
    return verify  # type: ignore[return-value]


class Checkpoint:
    """An open checkpoint: a mapping of tensor names to tensors that are read when asked for."""

    def __init__(self, payload: Payload, *, lazy: bool) -> None:
        self._payload: Payload | None = payload
        self._tensors: Tensors | None = Tensors(payload, algorithm="sha256" if lazy else None)
        self.manifest: Manifest = payload.manifest
        self.path: Path = payload.folder
        self.accepted: Statement | None = payload.accepted  # what a trusted key states of it, where trust was given

    @property
    def root(self) -> str:
        """``sha256:…`` of weights and state."""
        return self.manifest.root

    @property
    def seal(self) -> str:
        """``sha256:…`` of root, attachments and metadata."""
        return self.manifest.seal

    def keys(self) -> list[str]:
        """Tensor names, in state order."""
        return list(self.manifest.by_name)

    def __contains__(self, name: str) -> bool:
        return name in self.manifest.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.by_name)

    def __getitem__(self, name: str) -> Tensor:
        """One tensor; with ``verify="lazy"`` its chunks are proved first.

        Raises:
            KeyError: no tensor of that name.
            CorruptChunkError: a chunk differs from the manifest.
        """
        return self._open_tensors().whole(self._record(name))

    def slice(self, name: str, index: int | slice) -> Tensor:
        """Rows of one tensor; of a contiguous one, or one in pieces, only the chunks under them are proved and read.

        Args:
            name: A tensor with at least one dimension.
            index: Into its first dimension.

        Raises:
            KeyError: no tensor of that name.
            IndexError: it has no such row.
        """
        record = self._record(name)
        return self._open_tensors().rows(record, index)

    def attachment(self, path: str) -> Path:
        """The file of an attachment, proved by SHA-256 as it is now.

        Raises:
            KeyError: no attachment of that path.
            CorruptChunkError, CorruptFileError: it differs from the manifest.
        """
        found = {item.path: item for item in self.manifest.attachments}.get(path)
        if found is None:
            raise KeyError(f"'{self.path}' has no attachment '{path}'; it has {self._attachment_names()}")

        def prove(folder: Folder) -> Path:
            data = folder.view(path, size_bytes=found.chunks.size_bytes)
            for fault in faults_in_attachment(folder.path, found, data, "sha256"):
                raise fault
            return folder.path / path

        return reading(self.path, prove, expected=MANIFEST_NAME)

    def _attachment_names(self) -> str:
        return ", ".join(f"'{item.path}'" for item in self.manifest.attachments) or "none"

    def close(self) -> None:
        """Let go of the files; tensors that were handed out keep their memory."""
        self._payload = self._tensors = None

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _opened(self) -> Payload:
        if self._payload is None:
            raise NotACheckpointError(self.path, "a checkpoint that this program has closed")
        return self._payload

    def _open_tensors(self) -> Tensors:
        self._opened()
        assert self._tensors is not None, "both go when it is closed"
        return self._tensors

    def _record(self, name: str) -> TensorRecord:
        try:
            return self.manifest.by_name[name]
        except KeyError:
            raise KeyError(f"'{self.path}' has no tensor '{name}'; keys() lists those it has") from None

    def _load(self, level: Verify, device: torch.device, keys: Collection[str] | None) -> Any:
        if isinstance(keys, str):
            raise ValueError(f"keys is the text '{keys}'; expected names in a list, such as ['{keys}']")
        wanted = self.keys() if keys is None else list(keys)
        records = [self._record(name) for name in wanted]
        storages = sorted({storage for name in wanted for storage in self.manifest.storages_of(name)})
        _check(self._opened(), level, storages)
        with without_collection():
            made = Tensors(self._opened(), algorithm=None, device=device)
            tensors = {record.name: made.whole(record) for record in records}
            return tensors if keys is not None else unflatten(self.manifest.state, tensors)
