"""Which activation an operator is, in the words of ``compiler.kernels``."""

from typing import Final

from torch import fx

from compiler import operators

_NAMES: Final = {"aten.relu.default": "relu", "aten.silu.default": "silu"}
_GELU: Final = {"none": "gelu", "tanh": "gelu_tanh"}  # by its argument ``approximate``


def activation_of(node: fx.Node) -> str | None:
    """The word for an operator, None where no kernel applies it."""
    name = operators.name_of(node.target)
    if name == "aten.gelu.default":
        return _GELU.get(str(node.kwargs.get("approximate", "none")))
    return _NAMES.get(name)
