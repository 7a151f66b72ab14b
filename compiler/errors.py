"""Every error the compiler raises on purpose, drawn as a tree.

    CompilerError
    ├── CallError (ValueError)            the caller's model, inputs or tensors do not fit
    │   ├── CaptureError                  the model cannot be captured as a graph
    │   │   ├── TrainingModeError         a module is still in training mode
    │   │   ├── MutationError             the forward pass writes to its own state
    │   │   ├── ControlFlowError          which operators run depends on values
    │   │   └── UnsupportedOperatorError  an operator stands outside the table
    │   ├── UnverifiableError             the model does not run in float64, which programs are compared with
    │   ├── DynamicShapeError             dynamic= does not fit the example inputs
    │   ├── TensorMismatchError           a tensor has another shape, dtype, stride or device than stated
    │   ├── MissingTensorError            a mapping lacks a tensor that is read
    │   ├── BufferMismatchError           memory for an arena is too small, read-only or badly aligned
    │   ├── OtherFilesError               a folder for ONNX files holds something else
    │   └── WeightsError                  a file of weights is missing or damaged
    ├── BackendError
    │   ├── UnknownBackendError           no backend has this name
    │   ├── BackendRefusedError           the backend cannot serve this program, here
    │   └── BuildError                    the backend's own compiler failed or disobeyed
    ├── VerificationError                 the compiled program is further from float64 than eager execution allows
    └── InvalidProgramError               a stored program breaks a rule of docs/formats/program.md
        └── CorruptPackageError           a target's bytes are not those the program names

Messages say the thing, what was found, what was expected and the next step; attributes carry the same facts.
"""

from collections.abc import Sequence

from compiler.reasons import Reason


class CompilerError(Exception):
    """The root of the tree."""


class CallError(CompilerError, ValueError):
    """Something the caller handed over does not fit."""


class CaptureError(CallError):
    """The model cannot be captured as one graph."""

    def __init__(self, message: str, *, model: str) -> None:
        super().__init__(message)
        self.model = model


class TrainingModeError(CaptureError):
    """A module is in training mode, so its answers depend on chance or on its neighbours in the batch."""

    def __init__(self, *, model: str, modules: Sequence[str]) -> None:
        shown = ", ".join(repr(name) for name in modules[:5]) + (", …" if len(modules) > 5 else "")
        super().__init__(
            f"{model}: {len(modules)} module(s) are in training mode ({shown}), expected evaluation mode. "
            "Call model.eval() before compiling.",
            model=model,
        )
        self.modules = tuple(modules)


class MutationError(CaptureError):
    """The forward pass writes to a parameter, a buffer or an input."""

    def __init__(self, *, model: str, targets: Sequence[str]) -> None:
        super().__init__(
            f"{model}: its forward pass writes to {', '.join(repr(name) for name in targets)}; expected a pure "
            "function of inputs and weights. A batch norm with training=True does this; keep state outside the model.",
            model=model,
        )
        self.targets = tuple(targets)


class ControlFlowError(CaptureError):
    """Which operators run, or on how many elements, depends on values of tensors."""

    reason = Reason.CONTROL_FLOW

    def __init__(self, *, model: str, detail: str) -> None:
        super().__init__(
            f"{model}: control flow over tensor values: {detail}; expected one graph for all inputs. "
            "Choose with torch.where() over both results, or compile the branches as models of their own.",
            model=model,
        )
        self.detail = detail


class UnsupportedOperatorError(CaptureError):
    """An operator of the captured graph is not in the table of ``compiler.operators``."""

    def __init__(self, *, model: str, operator: str, site: str, why: str = "it is not in the operator table") -> None:
        super().__init__(
            f"{model}: operator {operator!r} at {site} cannot be compiled: {why}. "
            "Add it to compiler/operators.py with a test, or write the model without it.",
            model=model,
        )
        self.operator = operator
        self.site = site


class DynamicShapeError(CallError):
    """``dynamic=`` and the example inputs disagree."""


class TensorMismatchError(CallError):
    """A tensor is not what the program states."""

    def __init__(self, *, role: str, name: str, quality: str, found: object, expected: object) -> None:
        super().__init__(f"{role} {name!r}: {quality} is {found}, expected {expected}.")
        self.role = role
        self.name = name
        self.quality = quality
        self.found = found
        self.expected = expected


class MissingTensorError(CallError):
    """A mapping of tensors lacks names that are read."""

    def __init__(self, *, role: str, missing: Sequence[str], given: int) -> None:
        shown = ", ".join(repr(name) for name in missing[:5]) + (", …" if len(missing) > 5 else "")
        super().__init__(
            f"{role}: {len(missing)} of the tensors that the program reads are missing ({shown}); {given} were given. "
            "Pass a mapping that holds every name of the program's list."
        )
        self.missing = tuple(missing)


class BufferMismatchError(CallError):
    """A buffer cannot hold the constants' arena."""

    def __init__(self, *, quality: str, found: object, expected: object) -> None:
        super().__init__(f"arena buffer: {quality} is {found}, expected {expected}.")
        self.quality = quality
        self.found = found
        self.expected = expected


class OtherFilesError(CallError):
    """A folder for ONNX files holds something else."""

    def __init__(self, *, folder: object, found: str) -> None:
        super().__init__(
            f"'{folder}' holds {found}, expected an empty folder or the files of this program. Name another folder."
        )
        self.folder = folder
        self.found = found


class WeightsError(CallError):
    """A path leads to no weights."""

    def __init__(self, *, path: object, found: str) -> None:
        super().__init__(f"'{path}': found {found}, expected weights in safetensors. Name a checkpoint or such a file.")
        self.path = path
        self.found = found


class BackendError(CompilerError):
    """A backend cannot do what was asked."""


class UnknownBackendError(BackendError, ValueError):
    """No backend has this name."""

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        super().__init__(f"unknown backend {name!r}, expected one of {', '.join(sorted(known))}.")
        self.name = name
        self.known = tuple(sorted(known))


class BackendRefusedError(BackendError):
    """The backend states why it does not serve this program on this machine."""

    def __init__(self, *, backend: str, reason: str, next_step: str) -> None:
        super().__init__(f"backend {backend!r} refuses: {reason}. {next_step}")
        self.backend = backend
        self.reason = reason


class BuildError(BackendError):
    """The backend's code generator failed, or made something else than was asked."""

    def __init__(self, *, backend: str, reason: str) -> None:
        super().__init__(f"backend {backend!r} could not build the program: {reason}. backend='eager' needs no build.")
        self.backend = backend
        self.reason = reason


class UnverifiableError(CallError):
    """The model does not run in float64, so there is nothing to compare its program with."""

    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(
            f"{model} does not run in float64, which its program would be compared with: {reason}. Let its code make "
            "tensors in the type of what it is given (x.new_ones, dtype=x.dtype)."
        )
        self.model = model
        self.reason = reason


class VerificationError(CompilerError):
    """The program strays from the model by more than rounding explains. Nothing is packaged."""

    def __init__(self, *, worst: str, error: float, bound: float, failures: int) -> None:
        super().__init__(
            f"verification failed on {failures} input(s), worst on {worst}: error {error:.3g} against float64, "
            f"bound {bound:.3g}. A formula, a fold or the backend's code is wrong; compare with backend='eager'."
        )
        self.worst = worst
        self.error = error
        self.bound = bound
        self.failures = failures


class InvalidProgramError(CompilerError):
    """A stored program breaks a rule; ``path`` leads to the fault."""

    def __init__(self, *, path: str, found: str, expected: str) -> None:
        super().__init__(f"invalid program at {path}: found {found}, expected {expected}. Compile the model again.")
        self.path = path
        self.found = found
        self.expected = expected


class CorruptPackageError(InvalidProgramError):
    """A target's package is not the one whose SHA-256 the program holds."""
