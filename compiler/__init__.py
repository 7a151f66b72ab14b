"""A model becomes a program: captured, folded, fused, verified, and able to take new weights without recompiling.

``compile`` captures an ``nn.Module`` with ``torch.export``, folds batch normalisation into the layers before it, writes
the graph down as a canonical *definition*, lets a backend build native code for it, and compares the result with the
model in float64 before it hands anything over. What comes back is a *program*: a graph without weights.

Every constant of a program has a *formula* over checkpoint tensors: a copy (``head.weight``) or a small expression
(``conv.weight * reshape(bn.weight * rsqrt(bn.running_var + 1e-05), [8, 1, 1, 1])``). A new checkpoint therefore needs
no compiler: evaluate the formulas whose inputs changed, into memory the caller owns, and go on. Two arenas of that
memory make an update a swap of pointers, and evaluating A, then B, then A again gives back A bit for bit.

    program = compiler.compile(model, (x,), dynamic={"x": {0: compiler.Dim(name="batch", max=64)}})
    program.save("run/program")

    program = compiler.load("run/program")          # nothing is unpickled; every byte is checked
    first = program.allocate()                      # or allocate(shared_memory.buf)
    program.evaluate(state_dict, first)
    runner = program.load_runner(first)
    logits, = runner(batch)

    program.rebind(new_state_dict, runner)          # in place, between two batches; or beside what serves:
    second = program.allocate()
    program.evaluate(new_state_dict, second)
    runner.swap(second)                             # between two batches

Where to look: ``capture`` and ``passes`` make the graph, ``lowering`` and ``definition`` its canonical form,
``formula`` and ``constants`` the weights, ``backends`` what runs it, ``verification`` the proof, ``framing``,
``decode`` and ``validation`` what a file has to pass, ``page`` and ``web`` a program in a browser. The package knows
tensors by name and no checkpoints: it imports no other package of this project.
"""

from compiler.errors import (
    BackendError,
    BackendRefusedError,
    BufferMismatchError,
    BuildError,
    CallError,
    CaptureError,
    CompilerError,
    ControlFlowError,
    CorruptPackageError,
    DynamicShapeError,
    InvalidProgramError,
    MissingTensorError,
    MutationError,
    OtherFilesError,
    TensorMismatchError,
    TrainingModeError,
    UnknownBackendError,
    UnsupportedOperatorError,
    UnverifiableError,
    VerificationError,
    WeightsError,
)
from compiler.formula import Formula
from compiler.pipeline import compile
from compiler.program import Program, load
from compiler.report import Figure, Report
from compiler.runner import Prepared, Runner
from compiler.specs import ConstantSpec, Dim, TensorSpec

__all__ = [
    "BackendError",
    "BackendRefusedError",
    "BufferMismatchError",
    "BuildError",
    "CallError",
    "CaptureError",
    "CompilerError",
    "ConstantSpec",
    "ControlFlowError",
    "CorruptPackageError",
    "Dim",
    "DynamicShapeError",
    "Figure",
    "Formula",
    "InvalidProgramError",
    "MissingTensorError",
    "MutationError",
    "OtherFilesError",
    "Prepared",
    "Program",
    "Report",
    "Runner",
    "TensorMismatchError",
    "TensorSpec",
    "TrainingModeError",
    "UnknownBackendError",
    "UnsupportedOperatorError",
    "UnverifiableError",
    "VerificationError",
    "WeightsError",
    "compile",
    "load",
]
