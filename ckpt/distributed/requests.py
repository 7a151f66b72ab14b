"""A state to be loaded into, laid beside the stored one: which boxes go where, and which values are replaced.

Nothing is changed while they are compared. Whatever does not fit is collected, so that one error tells of all.
"""

from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ckpt.distributed.parts import parts_of
from ckpt.distributed.trees import Tree, tree_of
from ckpt.errors import StateMismatchError
from ckpt.format.boxes import Box, whole
from ckpt.format.dtypes import name_of
from ckpt.format.manifest import Manifest
from ckpt.format.records import TensorRecord
from ckpt.format.state import MAPPINGS, SEQUENCES, TENSORS, Kind, decode_scalar, tensor_name


@dataclass(frozen=True, slots=True)
class Wanted:
    """A box of a stored tensor, and the memory in this process that gets it."""

    record: TensorRecord
    box: Box
    into: Tensor


@dataclass(slots=True)
class Request:
    """What a state asks of a checkpoint.

    Attributes:
        wanted: Boxes to be read.
        changes: Called one after the other when all of them were read: they put the other values in place.
    """

    manifest: Manifest
    partial: bool
    wanted: list[Wanted] = field(default_factory=list)
    changes: list[Callable[[], object]] = field(default_factory=list)
    mismatches: list[tuple[str, str, str]] = field(default_factory=list)  # path, found, expected

    def mapping(self, asked: MutableMapping[object, object], stored: Tree, path: tuple[str, ...]) -> object:
        """Every key that is asked for; those that are not stay where they are stored."""
        if stored.node.kind not in MAPPINGS:
            return self._mismatch(path, stored, "a mapping", asked)
        if not asked and not stored.holds_tensors:
            return stored.value()
        values = {decode_scalar(key): value for key, value in stored.pairs}
        for key, value in asked.items():
            inner = (*path, str(key))
            if key in values:
                self._replace(asked, key, value, self.value(value, values[key], inner))
            elif not self.partial:
                self.mismatches.append((tensor_name(inner), "nothing", "a value"))
        return asked

    def value(self, asked: object, stored: Tree, path: tuple[str, ...]) -> object:
        """What will stand in the place of ``asked``: itself, when it is filled in place."""
        if isinstance(asked, Tensor):
            return self._tensor(asked, stored, path)
        if isinstance(asked, np.ndarray):
            return self._array(asked, stored, path)
        if isinstance(asked, MutableMapping):
            return self.mapping(asked, stored, path)
        if isinstance(asked, list | tuple) and (_holds_tensors(asked) or stored.holds_tensors):
            return self._sequence(asked, stored, path)
        if stored.holds_tensors:
            return self._mismatch(path, stored, f"a {type(asked).__name__}", asked)
        return stored.value()

    def _replace(self, where: Any, key: object, old: object, new: object) -> None:
        if new is not old:
            self.changes.append(lambda: where.__setitem__(key, new))

    def _sequence(self, asked: Sequence[object], stored: Tree, path: tuple[str, ...]) -> object:
        if stored.node.kind not in SEQUENCES or stored.node.count != len(asked):
            return self._mismatch(path, stored, f"a {type(asked).__name__} of {len(asked)}", asked)
        pairs = enumerate(zip(asked, stored.items, strict=True))
        values = [self.value(item, tree, (*path, str(index))) for index, (item, tree) in pairs]
        if isinstance(asked, MutableSequence):
            for index, value in enumerate(values):
                self._replace(asked, index, asked[index], value)
            return asked
        return asked if all(map(_is, values, asked)) else SEQUENCES[stored.node.kind](values)

    def _tensor(self, asked: Tensor, stored: Tree, path: tuple[str, ...]) -> object:
        record = self._record(stored)
        shape, dtype = tuple(asked.shape), name_of(asked.dtype)
        if record is None or asked.is_meta or (record.shape, record.dtype) != (shape, dtype):
            meta = " on the meta device, which has no memory: call .to_empty() first" if asked.is_meta else ""
            return self._mismatch(path, stored, f"a tensor of {asked.dtype} {shape}{meta}", asked)
        for part in parts_of(record.name, asked):
            self.wanted.append(Wanted(record, part.box, part.tensor))
        return asked

    def _array(
        self, asked: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", stored: Tree, path: tuple[str, ...]
    ) -> object:
        record = self._record(stored)
        if stored.node.kind is not Kind.NDARRAY or record is None or record.shape != asked.shape:
            return self._mismatch(path, stored, f"an array of {asked.dtype} {asked.shape}", asked)
        made = np.empty(record.shape, np.dtype(stored.node.data.decode()))
        self.wanted.append(Wanted(record, whole(record.shape), torch.from_numpy(made)))
        return made

    def _record(self, stored: Tree) -> TensorRecord | None:
        return self.manifest.by_name[stored.node.name] if stored.node.kind in TENSORS else None

    def _mismatch(self, path: tuple[str, ...], stored: Tree, expected: str, asked: object) -> object:
        record = self._record(stored)
        found = f"a {stored.node.kind.name.lower()}" + (f" of torch.{record.dtype} {record.shape}" if record else "")
        self.mismatches.append((tensor_name(path), found, expected))
        return asked


def request(state: MutableMapping[Any, Any], manifest: Manifest, path: Path, *, partial: bool) -> Request:
    """Compare a state with what is stored.

    Args:
        state: To be loaded into.
        manifest: Of the checkpoint.
        path: Its place, for messages.
        partial: Leave alone what is not stored, instead of refusing it.

    Raises:
        StateMismatchError: a key is missing, or a dtype, shape or kind differs.
    """
    made = Request(manifest, partial)
    stored = tree_of(manifest.state)
    if stored.node.kind in MAPPINGS and not state:
        return made
    made.mapping(state, stored, ())
    if made.mismatches:
        key, found, expected = made.mismatches[0]
        raise StateMismatchError(path, key, found, expected, others=len(made.mismatches) - 1)
    return made


def _holds_tensors(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor | np.ndarray)


def _is(first: object, second: object) -> bool:
    return first is second
