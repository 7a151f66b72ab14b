"""A definition for people: stable text that diffs line by line, and Graphviz.

Both are deterministic and written from the definition alone, so equal digests give equal text.
"""

import json

from compiler.definition import Argument, Atom, Definition, DTypeName, MemoryFormatName, Node, Ref
from compiler.report import Drawing
from compiler.specs import TensorSpec


def draw(definition: Definition, *, name: str) -> Drawing:
    """Both forms."""
    return Drawing(text=text(definition), dot=dot(definition, name=name))


def text(definition: Definition) -> str:
    """One line for each dimension, input, literal, constant, node and output."""
    lines = [f"dim {dim.name} = {dim.min}..{dim.max}" for dim in definition.dims]
    lines += [f"input {_spec(spec)}" for spec in definition.inputs]
    lines += [f"requires {_spec(spec)}" for spec in definition.requires]
    lines += [f"literal {entry.name}: {entry.dtype}{list(entry.shape)}" for entry in definition.literals]
    lines += [
        f"constant {entry.name}: {entry.dtype}{list(entry.shape)} strides {list(entry.strides)} = {entry.formula}"
        for entry in definition.constants
    ]
    lines += [f"%{index} = {_node(node, definition)}" for index, node in enumerate(definition.nodes)]
    lines += [f"output {_spec(output.spec)} = {definition.value_name(output.value)}" for output in definition.outputs]
    return "\n".join(lines) + "\n"


def dot(definition: Definition, *, name: str = "program") -> str:
    """A directed graph: boxes are operators, ellipses inputs, notes constants."""
    lines = [f"digraph {name} {{", "  rankdir=TB;"]
    for number in range(definition.first_node_value):
        shape = "ellipse" if number < len(definition.inputs) else "note"
        lines.append(f"  v{number} [shape={shape}, label={_quoted(definition.value_name(number))}];")
    for number, node in enumerate(definition.nodes, start=definition.first_node_value):
        lines.append(f"  v{number} [shape=box, label={_quoted(node.operator)}];")
        lines += [f"  v{ref} -> v{number};" for ref in node.refs]
    for index, output in enumerate(definition.outputs):
        lines.append(f"  out{index} [shape=ellipse, label={_quoted(output.spec.name)}];")
        lines.append(f"  v{output.value} -> out{index};")
    return "\n".join([*lines, "}"]) + "\n"


def _spec(spec: TensorSpec) -> str:
    axes = (str(size) if size is not None else dim or "?" for size, dim in zip(spec.shape, spec.dims, strict=True))
    return f"{spec.name}: {spec.dtype}[{', '.join(axes)}]"


def _node(node: Node, definition: Definition) -> str:
    arguments = ", ".join(f"{name}={_argument(argument, definition)}" for name, argument in node.arguments)
    devices = "|".join(node.device_set)
    return f"{node.operator}({arguments}) @{devices} {node.memory_layout} {node.phase} {node.sync_mode}"


def _argument(argument: Argument, definition: Definition) -> str:
    if isinstance(argument, tuple):
        return "[" + ", ".join(_atom(atom, definition) for atom in argument) + "]"
    return _atom(argument, definition)


def _atom(atom: Atom, definition: Definition) -> str:
    if isinstance(atom, Ref):
        return definition.value_name(atom.value)
    if isinstance(atom, DTypeName | MemoryFormatName):
        return atom.name
    return json.dumps(atom) if isinstance(atom, str) else repr(atom)


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
