"""Runs of a definition whose values lie in one arena, or take the place of an operand that nobody reads again.

The first run at some sizes is watched: which value lies in whose memory, and how. The next ones write there: an
operator in place where its operand ends with it, or into the arena at the place that :mod:`compiler.memory_plan` gives.
What no operator of torch can write into, such as the result of a convolution, is torch's own, and so is what reaches
an output. The same functions of torch compute the same bits, wherever they write.

Who shares memory is read from the run itself and not from the meta device, where strides, and with them what is a view,
may differ.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from compiler.definition import Definition, Node, Ref
from compiler.interpreter import Interpreter
from compiler.memory_plan import ALIGNMENT_BYTES, Lifetime, padded, place
from compiler.specs import row_major

_LINEAR: Final = "aten.linear.default"
MOST_SIZES: Final = 64  # sizes of inputs whose plans are kept; then all are forgotten


Sizes = tuple[tuple[int, ...], ...]  # of the inputs
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Form:
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage_bytes: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Home:
    """A storage: made by node ``first``, read by node ``last`` at the latest.

    ``owner`` is the value that it was made for: None for one of several results. What is the caller's is not ours to
    write over: an input, a constant, what an output shows.
    """

    first: int
    last: int
    owner: int | None
    is_callers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Node → what writes over its operand; node → what writes into ``out``, how that lies, where in the arena."""

    in_place: dict[int, Call]
    into: dict[int, tuple[Call, _Form, int]]
    arena_bytes: int
    device: torch.device


class ArenaInterpreter:
    """Runs as :class:`Interpreter` does, with an arena that stays; one run at a time uses it, others go without."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._plain = Interpreter(definition)
        self._plans: dict[Sizes, _Plan] = {}
        self._ready: dict[Sizes, Interpreter] = {}  # plans over the arena as it is
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._arena_bytes = 0
        self._turn = threading.Lock()

    @property
    def arena_bytes(self) -> int:
        """What it keeps: as much as the largest run so far needs."""
        return self._arena_bytes

    def run(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """As :meth:`Interpreter.run`; the outputs are the caller's."""
        if not self._turn.acquire(blocking=False):
            return self._plain.run(inputs, constants)
        try:
            sizes = tuple(tuple(tensor.shape) for tensor in inputs)
            if sizes not in self._plans:
                return self._watched(sizes, [*inputs, *constants])
            if sizes not in self._ready:
                self._ready[sizes] = self._over_the_arena(self._plans[sizes])
            return self._ready[sizes].run(inputs, constants)
        finally:
            self._turn.release()

    def _watched(self, sizes: Sizes, values: list[Any]) -> tuple[Tensor, ...]:
        if len(self._plans) == MOST_SIZES:
            self._plans.clear()
            self._ready.clear()
        watch = _Watch(self._definition, values)
        for node, _ in enumerate(self._plain.steps(values)):
            watch.note(node, values[-1])
        self._plans[sizes] = watch.plan()
        return tuple(values[output.value] for output in self._definition.outputs)

    def _over_the_arena(self, plan: _Plan) -> Interpreter:
        if plan.arena_bytes > self._arena_bytes:
            self._ready.clear()
            self._arena = torch.empty(plan.arena_bytes + ALIGNMENT_BYTES, dtype=torch.uint8, device=plan.device)
            self._arena_bytes = plan.arena_bytes
        start = -self._arena.data_ptr() % ALIGNMENT_BYTES
        calls: dict[int, tuple[Call, dict[str, Any]]] = {node: (call, {}) for node, call in plan.in_place.items()}
        for node, (call, form, offset) in plan.into.items():
            room = self._arena[start + offset : start + offset + form.storage_bytes].view(form.dtype)
            calls[node] = (call, {"out": room.as_strided(form.shape, form.strides)})
        return self._plain.replaced(calls)


class _Watch:
    """What a run shows: where each value lies, and how."""

    def __init__(self, definition: Definition, given: Sequence[Tensor]) -> None:
        self._definition = definition
        self._outputs = {output.value for output in definition.outputs}
        self._homes: list[list[_Home]] = []  # of each value; of several results, of each
        self._forms: list[_Form | None] = []
        self._last = [-1] * (definition.first_node_value + len(definition.nodes))
        for node, entry in enumerate(definition.nodes):
            self._last[definition.first_node_value + node] = node
            for ref in entry.refs:
                self._last[ref] = node
        self._alive: dict[int, tuple[torch.UntypedStorage, _Home]] = {}
        for tensor in given:
            self._add(tensor, first=-1)

    def note(self, node: int, result: Any) -> None:
        """A node's result."""
        self._add(result, first=node)
        self._alive = {key: entry for key, entry in self._alive.items() if entry[1].last > node}

    def _add(self, result: Any, *, first: int) -> None:
        value = len(self._homes)
        is_one = isinstance(result, Tensor)
        tensors = [result] if is_one else _tensors(result)
        homes = [self._home(tensor, first, value if is_one else None) for tensor in tensors]
        for home in homes:
            home.last = max(home.last, self._last[value])
            home.is_callers |= first < 0 or value in self._outputs
        self._homes.append(homes)
        self._forms.append(_form(result) if is_one else None)

    def _home(self, tensor: Tensor, first: int, owner: int | None) -> _Home:
        storage = tensor.untyped_storage()
        known = self._alive.get(storage._cdata)
        if known is None:
            home = _Home(first=first, last=first, owner=owner, is_callers=False)
            known = self._alive[storage._cdata] = (storage, home)  # a storage that dies gives its identity to the next
        return known[1]

    def plan(self) -> _Plan:
        """Who writes where from now on."""
        in_place = dict(self._take_over())
        chosen = list(self._writing())
        device = chosen[0][1].device if chosen else torch.device("cpu")
        chosen = [entry for entry in chosen if entry[1].device == device]
        lives = [
            Lifetime(first=home.first, last=home.last, size_bytes=padded(form.storage_bytes))
            for _, form, home in chosen
        ]
        places = list(zip(chosen, place(lives), strict=True))
        return _Plan(
            in_place=in_place,
            into={home.first: (call, form, offset) for (call, form, home), offset in places},
            arena_bytes=max((offset + padded(form.storage_bytes) for (_, form, _), offset in places), default=0),
            device=device,
        )

    def _take_over(self) -> Iterator[tuple[int, Call]]:
        """Nodes that may write over their first operand, which then live on in its place."""
        for node, entry in enumerate(self._definition.nodes):
            value = self._definition.first_node_value + node
            form, operand = self._forms[value], _first_operand(entry)
            if form is None or operand is None or self._forms[operand] != form:
                continue
            call = _sibling(entry.operator, form.device.type, in_place=True)
            if call is None or not self._ends_with(operand, node):
                continue
            (old,), (new,) = self._homes[operand], self._homes[value]
            old.last, old.is_callers = new.last, new.is_callers
            self._homes = [[old if home is new else home for home in homes] for homes in self._homes]
            yield node, call

    def _ends_with(self, operand: int, node: int) -> bool:
        """Whether nothing but this argument of this node needs what the operand lies in."""
        (old,), (new,) = self._homes[operand], self._homes[self._definition.first_node_value + node]
        reads = [home for ref in self._definition.nodes[node].refs for home in self._homes[ref]]
        return old is not new and not old.is_callers and old.last == node and reads.count(old) == 1

    def _writing(self) -> Iterator[tuple[Call, _Form, _Home]]:
        """Homes that their operators can be told, with what takes the place of these."""
        for home in dict.fromkeys(home for homes in self._homes for home in homes):
            form = None if home.owner is None or home.is_callers else self._forms[home.owner]
            if form is None or form.offset or not form.storage_bytes:
                continue
            call = self._into(home.first, form)
            if call is not None:
                yield call, form, home

    def _into(self, node: int, form: _Form) -> Call | None:
        entry = self._definition.nodes[node]
        if entry.operator == _LINEAR:
            x = self._forms[entry.refs[0]]
            rows = x is not None and x.strides == row_major(x.shape) and len(x.shape) in (2, 3)
            return _linear_into if rows and len(entry.refs) == 3 and form.strides == row_major(form.shape) else None
        return _sibling(entry.operator, form.device.type, in_place=False)


def _linear_into(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor) -> Tensor:
    """What ``linear`` calls for rows of one or two axes."""
    torch.addmm(bias, x.flatten(0, -2), weight.t(), out=out.flatten(0, -2))
    return out


@cache
def _sibling(operator: str, device: str, *, in_place: bool) -> Call | None:
    """The overload of an operator that writes over its first operand, or into ``out``; None where there is none.

    The device must have a kernel for both. Torch makes others for everything, which compute elsewhere and copy; and
    operators that are made of others may go another way to write into ``out``, with other rounding.
    """
    if not operator.startswith("aten."):
        return None
    _, name, overload = operator.split(".")
    own: Any = getattr(getattr(torch.ops.aten, name), overload)
    packet = getattr(torch.ops.aten, name + "_" * in_place, None)
    for other in packet.overloads() if packet and _has_kernel(own, device) else ():
        found: Any = getattr(packet, other)
        outs = [argument.name for argument in found._schema.arguments if argument.is_out]
        if _arguments(found) == _arguments(own) and outs == ([] if in_place else ["out"]):
            return found if _has_kernel(found, device) else None
    return None


def _has_kernel(overload: Any, device: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), device.upper())


def _arguments(overload: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in overload._schema.arguments if not argument.is_out]


def _first_operand(node: Node) -> int | None:
    argument = node.arguments[0][1] if node.arguments else None
    return argument.value if isinstance(argument, Ref) else None


def _form(tensor: Tensor) -> _Form:
    storage_bytes = tensor.untyped_storage().nbytes()
    return _Form(
        tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), storage_bytes
    )


def _tensors(result: Any) -> list[Tensor]:
    return [item for item in result if isinstance(item, Tensor)] if isinstance(result, list | tuple) else []
