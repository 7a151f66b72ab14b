"""Whether a definition makes sense: checked after reading one and after making one, before anything runs.

Refused, each with the path to the fault: names that repeat or lead nowhere, references that do not point backwards,
unknown operators and arguments, formulas that do not yield the constant's shape, literals of the wrong length, outputs
that are not what is stated. Shapes are found by running the graph on torch's meta device at both ends of every
dimension: no memory is used and no weight is needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from compiler import dtypes, operators
from compiler.arguments import accepts, require_sense
from compiler.definition import Argument, Definition, Literal, Node, Ref, atoms
from compiler.errors import InvalidProgramError
from compiler.formula import FIELDS, OPERANDS, Step, compute_steps
from compiler.interpreter import Interpreter
from compiler.specs import ConstantSpec, TensorSpec, is_dense

# What torch's own checks raise when an operator is called with arguments that it does not take.
_OPERATOR_FAULTS: Final = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)
# The fields of a step, beside its operation and operands, and what they hold where they do not belong to it.
_EMPTY: Final = {"name": "", "value": 0.0, "shape": (), "axes": (), "start": 0, "length": 0}


def validate(definition: Definition) -> None:
    """Check every rule of a definition.

    Raises:
        InvalidProgramError: At the first fault, with its path.
    """
    _names(definition)
    for index, literal in enumerate(definition.literals):
        _literal(literal, f"definition.literals[{index}]")
    for index, constant in enumerate(definition.constants):
        _constant(constant, definition, f"definition.constants[{index}]")
    _everything_is_read(definition)
    _nodes(definition)
    if not definition.outputs:
        raise _fault("definition.outputs", "no outputs", "at least one")
    _shapes(definition)


def _fault(path: str, found: object, expected: object) -> InvalidProgramError:
    return InvalidProgramError(path=path, found=str(found), expected=str(expected))


def _names(definition: Definition) -> None:
    lists: dict[str, Iterable[str]] = {
        "dims": (dim.name for dim in definition.dims),
        "inputs": (spec.name for spec in definition.inputs),
        "requires": (spec.name for spec in definition.requires),
        "literals": (literal.name for literal in definition.literals),
        "constants": (constant.name for constant in definition.constants),
        "outputs": (output.spec.name for output in definition.outputs),
    }
    for field, names in lists.items():
        seen: set[str] = set()
        for index, name in enumerate(names):
            if name in seen:
                raise _fault(f"definition.{field}[{index}].name", f"{name!r} a second time", "a name of its own")
            seen.add(name)
    known = {dim.name for dim in definition.dims}
    used = {dim for spec in definition.inputs for dim in spec.dims if dim is not None}
    if used != known:
        raise _fault("definition.dims", sorted(known), f"the dimensions that inputs have: {sorted(used)}")
    for index, spec in enumerate(definition.requires):
        if None in spec.shape:
            raise _fault(f"definition.requires[{index}].axes", "a dynamic axis", "fixed sizes")


def _literal(literal: Literal, path: str) -> None:
    expected = prod(literal.shape) * dtypes.BY_NAME[literal.dtype].itemsize
    if len(literal.data) != expected:
        raise _fault(f"{path}.data", f"{len(literal.data)} bytes", f"{expected}")
    if literal.dtype == "bool" and literal.data.strip(b"\x00\x01"):
        raise _fault(f"{path}.data", "a byte above 1", "0 or 1 for each bool")


def _constant(constant: ConstantSpec, definition: Definition, path: str) -> None:
    if not is_dense(constant.shape, constant.strides):
        raise _fault(f"{path}.strides", constant.strides, f"a dense layout of {constant.shape}")
    leaves: dict[tuple[str, str], TensorSpec | Literal] = {("tensor", spec.name): spec for spec in definition.requires}
    leaves.update({("literal", literal.name): literal for literal in definition.literals})
    for index, step in enumerate(constant.formula.steps):
        _step(step, index, leaves, f"{path}.steps[{index}]")
    _formula(constant, leaves, path)


def _step(step: Step, index: int, leaves: Mapping[tuple[str, str], object], path: str) -> None:
    count, expected = len(step.operands), OPERANDS[step.operation]
    if count != expected and (expected is not None or count < 2):
        raise _fault(f"{path}.operands", f"{count} operands", "2 or more" if expected is None else expected)
    for operand in step.operands:
        if operand >= index:
            raise _fault(f"{path}.operands", f"step {operand}", f"a step before {index}")
    if step.operation in ("tensor", "literal") and (step.operation, step.name) not in leaves:
        raise _fault(f"{path}.name", repr(step.name), f"a {step.operation} that the definition lists")
    for field, empty in _EMPTY.items():
        if field not in FIELDS.get(step.operation, ()) and getattr(step, field) != empty:
            raise _fault(f"{path}.{field}", repr(getattr(step, field)), f"no {field} on {step.operation}")
    if step.operation in ("narrow", "cat") and len(step.axes) != 1:
        raise _fault(f"{path}.axes", step.axes, "one axis")
    if step.operation == "sum" and not step.axes:
        raise _fault(f"{path}.axes", step.axes, "at least one axis")


def _formula(constant: ConstantSpec, leaves: Mapping[tuple[str, str], TensorSpec | Literal], path: str) -> None:
    steps = constant.formula.steps
    unread = set(range(len(steps) - 1)) - {operand for step in steps for operand in step.operands}
    if unread:
        raise _fault(f"{path}.steps[{min(unread)}]", "a step that nothing reads", "a reader")
    read = {(step.operation, step.name): leaves[step.operation, step.name] for step in steps if step.name}
    names = {leaf.dtype for leaf in read.values()} | {constant.dtype}
    if constant.formula.moves_only and len(names) > 1:
        raise _fault(f"{path}.dtype", constant.dtype, "the dtype of what it copies")
    if not constant.formula.moves_only and not all(dtypes.BY_NAME[name].is_floating_point for name in names):
        raise _fault(f"{path}.dtype", sorted(names), "floating point wherever numbers are computed")
    shape = _computed_shape(constant, read, path)
    if shape != constant.shape:
        raise _fault(f"{path}.shape", constant.shape, f"{shape}, the shape of its formula")


def _computed_shape(
    constant: ConstantSpec, read: Mapping[tuple[str, str], TensorSpec | Literal], path: str
) -> tuple[int, ...]:
    try:
        tensors = {
            key: torch.empty([size or 0 for size in leaf.shape], dtype=dtypes.BY_NAME[leaf.dtype], device="meta")
            for key, leaf in read.items()
        }
        values = compute_steps(constant.formula, tensors)
    except _OPERATOR_FAULTS as error:
        raise _fault(f"{path}.steps", error, "shapes that fit each other") from error
    most = prod(constant.shape) + sum(tensor.numel() for tensor in tensors.values())
    for index, value in enumerate(values):
        if value.numel() > most:
            raise _fault(
                f"{path}.steps[{index}]", f"{value.numel()} elements", f"at most {most}, as many as go in and out"
            )
    return tuple(values[-1].shape)


def _everything_is_read(definition: Definition) -> None:
    tensors = {name for constant in definition.constants for name in constant.formula.tensors}
    literals = {name for constant in definition.constants for name in constant.formula.literals}
    for index, spec in enumerate(definition.requires):
        if spec.name not in tensors:
            raise _fault(f"definition.requires[{index}]", f"{spec.name!r}, read by no formula", "a reader")
    for index, literal in enumerate(definition.literals):
        if literal.name not in literals:
            raise _fault(f"definition.literals[{index}]", f"{literal.name!r}, read by no formula", "a reader")


def _nodes(definition: Definition) -> None:
    from_request = set(range(len(definition.inputs)))
    for index, node in enumerate(definition.nodes):
        path = f"definition.nodes[{index}]"
        number = definition.first_node_value + index
        _arguments(node, number, path)
        expected = "request" if from_request.intersection(node.refs) else "constant"
        if expected == "request":
            from_request.add(number)
        if node.phase != expected:
            raise _fault(f"{path}.phase", node.phase, expected)


def _arguments(node: Node, number: int, path: str) -> None:
    operator = operators.find(node.operator)
    if operator is None:
        raise _fault(f"{path}.operator", repr(node.operator), "an operator of the table")
    if not node.device_set or not set(node.device_set) <= set(operator.devices):
        raise _fault(f"{path}.device_set", node.device_set, f"some of {operator.devices}")
    names = [name for name, _ in node.arguments]
    schema = [parameter.name for parameter in operator.parameters]
    if names != [name for name in schema if name in names]:
        raise _fault(f"{path}.arguments", names, f"names of {schema}, once each, in this order")
    for parameter in operator.parameters:
        if not parameter.has_default and parameter.name not in names:
            raise _fault(f"{path}.arguments", f"no {parameter.name}", "every argument without a default")
    kinds = {parameter.name: parameter.kind for parameter in operator.parameters}
    for position, (name, argument) in enumerate(node.arguments):
        if not accepts(kinds[name], argument):
            raise _fault(f"{path}.arguments[{position}]", argument, f"{kinds[name]}, as {node.operator} takes")
        if name == "dropout_p" and argument != 0.0:
            raise _fault(f"{path}.arguments[{position}]", f"dropout of {argument}", "no chance in a program")
        for atom in atoms(argument):
            if isinstance(atom, Ref) and atom.value >= number:
                raise _fault(f"{path}.arguments[{position}]", f"value {atom.value}", f"a value before {number}")


def _shapes(definition: Definition) -> None:
    last = definition.first_node_value + len(definition.nodes)
    for index, output in enumerate(definition.outputs):
        if output.value >= last:
            raise _fault(f"definition.outputs[{index}].value", output.value, f"a value before {last}")
    interpreter = Interpreter(definition)
    for sizes in ({dim.name: dim.max for dim in definition.dims}, {dim.name: dim.min for dim in definition.dims}):
        values = _run_on_meta(interpreter, definition, sizes)
        for index, output in enumerate(definition.outputs):
            _output(values[output.value], output.spec, sizes, f"definition.outputs[{index}]")


class OnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes tensors that operators create from nothing (arange, full) on the meta device, too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        creates = any(argument.name == "device" for argument in func._schema.arguments)
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if creates else {})})


def _run_on_meta(interpreter: Interpreter, definition: Definition, sizes: Mapping[str, int]) -> list[Any]:
    path = "definition.inputs"
    try:
        with torch.device("meta"), torch.no_grad(), OnMeta():  # type: ignore[no-untyped-call]
            inputs = [torch.empty(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs]
            path = "definition.constants"
            constants = [
                torch.empty_strided(entry.shape, entry.strides, dtype=dtypes.BY_NAME[entry.dtype])
                for entry in definition.constants
            ]
            values: list[Any] = [*inputs, *constants]
            turns = interpreter.steps(values)
            for index, node in enumerate(definition.nodes):
                path = f"definition.nodes[{index}]"
                require_sense(node.operator, {name: _given(argument, values) for name, argument in node.arguments})
                next(turns)
    except _OPERATOR_FAULTS as error:
        raise _fault(path, error, f"arguments that fit each other at {dict(sizes)}") from error
    return values


def _given(argument: Argument, values: Sequence[Any]) -> Any:
    if isinstance(argument, tuple):
        return [_given(atom, values) for atom in argument]
    return values[argument.value] if isinstance(argument, Ref) else argument


def _output(value: Any, spec: TensorSpec, sizes: Mapping[str, int], path: str) -> None:
    if not isinstance(value, Tensor):
        raise _fault(f"{path}.value", type(value).__name__, "a tensor")
    if dtypes.NAME.get(value.dtype) != spec.dtype:
        raise _fault(f"{path}.spec.dtype", spec.dtype, f"{value.dtype}, what the graph computes")
    shape = tuple(value.shape)
    stated = tuple(
        found if dim == "" else sizes.get(dim, -1) if dim is not None else size
        for found, size, dim in zip(shape, spec.shape, spec.dims, strict=False)
    )
    if shape != stated or len(shape) != len(spec.shape):
        raise _fault(f"{path}.spec.axes", spec.shape, f"{shape} at {dict(sizes)}, what the graph computes")
