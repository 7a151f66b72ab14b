"""What can be wrong with a call of a fused operator.

    CompilerError
    └── CallError (ValueError)
        └── KernelError
            ├── ShapeError    operands whose shapes do not fit together
            ├── OperandError  an operand of another dtype or on another device than the operator takes
            ├── ChoiceError   an activation, a precision or a configuration that no table has
            └── BudgetError   a configuration that takes more than the device has

Messages say the operator, the operand, what was found, what was expected and the next step; attributes carry the facts.
"""

from collections.abc import Iterable

from compiler.errors import CallError


class KernelError(CallError):
    """Anything a fused operator refuses."""

    def __init__(
        self, *, operator: str, operand: str, quality: str, found: object, expected: object, next_step: str
    ) -> None:
        super().__init__(f"{operator}: {quality} of '{operand}' is {found}, expected {expected}. {next_step}")
        self.operator = operator
        self.operand = operand
        self.found = found
        self.expected = expected


class ShapeError(KernelError):
    """An operand is not as long as another says it must be."""

    def __init__(self, *, operator: str, operand: str, found: object, expected: object) -> None:
        super().__init__(
            operator=operator,
            operand=operand,
            quality="shape",
            found=found,
            expected=expected,
            next_step="Compare it with the module that the weights come from.",
        )


class OperandError(KernelError):
    """An operand has a dtype or a device that the operator does not take."""


class ChoiceError(KernelError):
    """A word or a number is outside its table."""

    def __init__(self, *, operator: str, choice: str, found: object, known: Iterable[object]) -> None:
        self.known = tuple(known)
        super().__init__(
            operator=operator,
            operand=choice,
            quality="value",
            found=repr(found),
            expected=f"one of {', '.join(map(str, self.known))}",
            next_step="Choose one of these.",
        )


class BudgetError(KernelError):
    """A configuration, made for another device, does not fit into this one."""

    def __init__(self, *, operator: str, config: str, device: str, shared_bytes: int) -> None:
        super().__init__(
            operator=operator,
            operand="config",
            quality="value",
            found=repr(config),
            expected=f"one whose tiles fit into {shared_bytes} bytes of shared memory of '{device}' and 128 registers",
            next_step="Leave it empty, or tune for this device: python -m benchmarks.tune_kernels.",
        )
        self.shared_bytes = shared_bytes
