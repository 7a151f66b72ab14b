"""What a model is, as far as tracing can see it, in one digest: its modules, their attributes and the code behind them.

Two models of one fingerprint trace to the same graph. What goes in:

- the tree of modules with classes and attributes; of parameters and buffers dtype, shape, strides, sharing and whether
  they want gradients; and what tensors hold that are in no state dict, for they are literals of a program;
- the *code objects* (what runs is what was imported, or patched since, not what a file says now) of every function that
  is reached from the classes through attributes, globals, closures and defaults. Of a module that is reached, every
  attribute counts whose name stands in any code that is;
- what is told by name and the state of the process that changes how torch traces (``compiler.surroundings``).

Whatever else there is raises ``UnfathomableError`` with its place: hooks; code that imports, evaluates text or reads
the world; objects with state in C. What errs, errs towards another digest.
"""

import dis
import enum
import functools
import hashlib
import inspect
import struct
import sys
import types
from collections import OrderedDict
from collections.abc import Mapping, Set
from typing import Any, Final

import torch
from torch import Tensor, nn

from compiler.surroundings import DYNAMO, UnfathomableError, is_versioned, origin_of, process

_PLAIN: Final = frozenset(
    {type(None), bool, int, str, bytes, complex, slice, range, type(Ellipsis), type(NotImplemented)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)
_NATIVE: Final = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType),
)
_SLOT: Final = types.MemberDescriptorType
_HOOKS: Final = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
_WORLDLY: Final = frozenset({"eval", "exec", "globals", "locals", "open", "__import__", "import_module", "breakpoint"})
_BY_TEXT: Final = frozenset({"getattr", "vars", "__dict__", "attrgetter", "methodcaller"})
_IMPORT: Final = dis.opmap["IMPORT_NAME"]
# What Python writes into every class, and no forward pass reads.
_CLASS_NOTES: Final = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__parameters__", "__orig_bases__"}
    | {"__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__match_args__"}
)


def fingerprint(model: nn.Module, *others: Any) -> str:
    """A SHA-256 in hex over everything that decides how ``model`` traces, its weights' values aside.

    Args:
        model: As it is handed to ``compile``.
        others: Other values that decide, such as inputs: of tensors the outline, not what they hold.

    Raises:
        UnfathomableError: Something about it is not understood.
    """
    reading = _Reading()
    reading.add(*process())
    for other in others:
        reading.outline(other, "input") if isinstance(other, Tensor) else reading.value(other, "argument")
    try:
        reading.module(model, type(model).__name__)
        reading.close()
    except RecursionError as error:
        raise UnfathomableError(type(model).__name__, "nested too deeply") from error
    return reading.hexdigest()


class _Reading:
    """One walk. What has an identity is numbered when it is met first, so that cycles end and sharing shows."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._met: dict[object, tuple[int, object]] = {}  # what is met is kept, as its identity is compared
        self._names: set[str] = set()
        self._modules: dict[str, types.ModuleType] = {}

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, *words: object) -> None:
        for word in words:
            text = word if isinstance(word, bytes) else str(word).encode()
            self._hash.update(struct.pack("<Q", len(text)) + text)

    def _is_new(self, key: object, value: object) -> bool:
        """Whether this is the first time; its number stands for it from then on."""
        count = len(self._met)
        number, _ = self._met.setdefault(key, (count, value))
        self.add("new" if number == count else "again", number)
        return number == count

    def close(self) -> None:
        """Read those attributes of modules whose names stand in any code, until no code is new."""
        done: set[tuple[str, str]] = set()
        while (
            fresh := {(key, name) for key in self._modules for name in self._names & vars(self._modules[key]).keys()}
            - done
        ):
            for key, name in sorted(fresh):
                self.add(key, name)
                self.value(vars(self._modules[key])[name], f"{key}.{name}")
            done |= fresh
        texts = self._names & _BY_TEXT
        if self._modules and texts:
            raise UnfathomableError(min(self._modules), f"a module, beside code that says {min(texts)}")

    def value(self, value: Any, place: str) -> None:
        """Any value, by what it is."""
        kind = type(value)
        if kind in _PLAIN:
            self.add(kind.__qualname__, repr(value))
        elif kind is float:
            self.add("float", value.hex())
        elif kind in (tuple, list):
            self.add(kind.__qualname__, len(value))
            for index, part in enumerate(value):
                self.value(part, f"{place}[{index}]")
        elif kind in (dict, OrderedDict, types.MappingProxyType):
            self._mapping(value, place)
        elif kind in (set, frozenset):
            self._set(value, place)
        elif self._is_new(id(value), value):
            self._identified(value, place)

    def _mapping(self, value: Mapping[Any, Any], place: str) -> None:
        self.add(type(value).__qualname__, len(value))
        for key, part in value.items():
            self.value(key, f"{place}: a key")
            self.value(part, f"{place}.{key}")

    def _set(self, value: Set[Any], place: str) -> None:
        """In an order of its own: that of a set differs from process to process."""
        if not all(type(part) in _PLAIN for part in value):
            raise UnfathomableError(place, "a set of other things than words and numbers")
        self.add("set", *sorted(f"{type(part).__qualname__} {part!r}" for part in value))

    def _identified(self, value: Any, place: str) -> None:
        if isinstance(value, nn.Module):
            self.module(value, place)
        elif isinstance(value, Tensor):
            self.outline(value, place)
            self.add(_bytes_of(value))
        elif isinstance(value, type):
            self._class(value, place)
        elif isinstance(value, types.FunctionType):
            self._function(value, place)
        elif isinstance(value, types.ModuleType):
            self._module(value, place)
        elif isinstance(value, _NATIVE):
            self._native(value, place)
        elif isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            self.add("operator", str(value))
        elif (parts := _parts(value)) is not None:
            self.add(type(value).__qualname__)
            self._mapping(parts, place)
        else:
            self._instance(value, place)

    def module(self, module: nn.Module, place: str) -> None:
        """A module with all that is under it; of weights their outline alone."""
        own = dict(vars(module))
        for name, value in own.items():
            if name.endswith(_HOOKS) and value:
                raise UnfathomableError(f"{place}.{name}", "hooks")
        tensors = own.pop("_parameters") | own.pop("_buffers")
        for name, tensor in tensors.items():
            self.add(name)
            if tensor is None or name in module._non_persistent_buffers_set:
                self.value(tensor, f"{place}.{name}")
            elif self._is_new(id(tensor), tensor):
                self.outline(tensor, f"{place}.{name}")
        self._mapping(own.pop("_modules"), place)
        self._instance(module, place, attributes=own)

    def outline(self, tensor: Tensor, place: str) -> None:
        """All about a tensor but what it holds; which others lie in its memory, too."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            raise UnfathomableError(place, f"a tensor of {type(tensor).__qualname__}, {tensor.layout}")
        if tensor._backward_hooks:
            raise UnfathomableError(place, "hooks")
        self.add(type(tensor).__qualname__, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        self.add(tensor.storage_offset(), tensor.is_conj(), tensor.is_neg(), tensor.requires_grad)
        storage = tensor.untyped_storage()
        self._is_new(("storage", storage._cdata), storage)
        self._mapping(getattr(tensor, "__dict__", {}), place)

    def _instance(self, value: Any, place: str, *, attributes: Mapping[str, Any] | None = None) -> None:
        """An object that is its attributes and nothing else."""
        kind = type(value)
        own = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]  # none that is written in C has these
        slots = [name for base in own for name, entry in base.items() if type(entry) is _SLOT]
        pointers = len(slots) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
        if kind.__itemsize__ or kind.__basicsize__ > object.__basicsize__ + struct.calcsize("P") * pointers:
            raise UnfathomableError(place, f"an object of {kind.__module__}.{kind.__qualname__}, with state in C")
        self.value(kind, f"type({place})")
        self._mapping(vars(value) if attributes is None else attributes, place) if hasattr(value, "__dict__") else None
        self._mapping({name: getattr(value, name) for name in slots if hasattr(value, name)}, place)

    def _class(self, cls: type, place: str) -> None:
        """Its name and all of its attributes; of one that is versioned its name, and which functions it has."""
        self.add("class", cls.__module__, cls.__qualname__)
        versioned = is_versioned(cls.__module__)
        for base in cls.__mro__[1:]:
            self.value(base, f"{place}, {base.__qualname__}")
        for name, value in sorted(vars(cls).items()):
            if name not in _CLASS_NOTES and (not versioned or isinstance(value, types.FunctionType)):
                self.add(name)
                self.value(value, f"{place}.{name}")

    def _function(self, function: types.FunctionType, place: str) -> None:
        """Its code, what it closes over, and each global that it names."""
        # Dynamo, when it is first imported, puts wrappers around some of torch's functions, which call these.
        if function.__code__.co_filename.startswith(DYNAMO):
            function = inspect.unwrap(function)
        code = function.__code__
        self.add("function", function.__module__ or "", function.__qualname__)
        closure = {name: _cell(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
        self._mapping(closure, f"{place}, closure")
        origin = origin_of(code.co_filename)
        if origin is not None:
            if not is_versioned(origin):
                raise UnfathomableError(
                    place, f"{function.__module__}.{function.__qualname__}, which may read the world"
                )
            return
        self.value((function.__defaults__, function.__kwdefaults__, vars(function)), f"{place}, defaults")
        names = self._code(code, place)
        self._names |= names
        for name in sorted(names & function.__globals__.keys()):
            self.add(name)
            self.value(function.__globals__[name], f"{function.__module__}.{name}")

    def _code(self, code: types.CodeType, place: str) -> frozenset[str]:
        """Instructions and constants, nested ones too; returns every name they use."""
        self.add("code", code.co_code, code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount)
        self.add(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable)
        worldly = _WORLDLY.intersection(code.co_names)
        if worldly or _IMPORT in code.co_code[::2]:
            raise UnfathomableError(place, f"code that says {min(worldly, default='import')}")
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._code(constant, place)
            else:
                self.value(constant, f"{place}, a constant")
        return frozenset(names)

    def _module(self, module: types.ModuleType, place: str) -> None:
        self.add("module", module.__name__)
        if is_versioned(module.__name__):
            return
        file = getattr(module, "__file__", None) or ""
        installed = module.__name__ in sys.builtin_module_names or origin_of(file) is not None
        if installed or "__getattr__" in vars(module):
            raise UnfathomableError(place, f"the module {module.__name__}")
        self._modules[module.__name__] = module

    def _native(self, value: Any, place: str) -> None:
        """Told by its name and what it is bound to."""
        owner = getattr(value, "__self__", None)
        origin = getattr(value, "__module__", None) or getattr(value, "__objclass__", owner.__class__).__module__
        self.add("native", type(value).__qualname__, origin, value.__qualname__)
        if type(value) not in (types.GetSetDescriptorType, _SLOT) and not is_versioned(origin):
            raise UnfathomableError(place, f"{origin}.{value.__qualname__}, which is written in C")
        if owner is not None and not isinstance(owner, type | types.ModuleType):
            self.value(owner, f"{place}.__self__")


def _parts(value: Any) -> dict[str, Any] | None:
    """What something that wraps functions, or stands for a value, is made of."""
    if isinstance(value, types.MethodType):
        return {"function": value.__func__, "of": value.__self__}
    if isinstance(value, staticmethod | classmethod):
        return {"function": value.__func__}
    if isinstance(value, property):
        return {"get": value.fget, "set": value.fset, "delete": value.fdel}
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": value.args, "named": value.keywords}
    if isinstance(value, functools.cached_property):
        return {"get": value.func}
    if isinstance(value, functools._lru_cache_wrapper):
        return {"function": value.__wrapped__}
    if isinstance(value, enum.Enum):
        return {"class": type(value).__qualname__, "module": type(value).__module__, "value": value.value}
    return None


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return "an empty cell"


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
