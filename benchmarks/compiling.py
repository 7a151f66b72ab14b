"""The area ``compiler``: compiled programs whose weights can be exchanged, beside what fixes them or compiles anew.

Two threads on every side, static shapes but where compiling itself is timed. A full run takes about a quarter of an
hour on 2 cores, most of it compiling, and quick ones leave out the sides that would compile.
"""

from collections.abc import Mapping

from benchmarks.plan import Comparison, Side, Stage, Value

_INFERENCE = "benchmarks.cases.inference"


def stages(is_quick: bool) -> tuple[Stage, ...]:
    """A residual network and a language model, at the batches that are asked of them."""
    if is_quick:
        return (_stage("tiny", backend="eager", calls=2, swaps=True), _recalled("tiny", backend="eager"))
    return (
        _stage("resnet18", backend="aoti", calls=20, swaps=True),
        _stage("minilm", backend="aoti", calls=10),
        _recalled("resnet18", backend="aoti"),
        _recalled("minilm", backend="aoti"),
    )


def _peer(name: str, case: str, *needs: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"{_INFERENCE}:{case}", parameters=parameters, needs=("torch", *needs))


def _ours(name: str, case: str, **parameters: Value) -> Side:
    return Side(name=name, case=f"{_INFERENCE}:{case}", parameters=parameters, is_ours=True)


def _compilers(asked: Mapping[str, Value]) -> tuple[Side, ...]:
    return (
        _peer("torch.compile", "torch_compile", freezing=False, **asked),
        _peer("torch.compile, freezing", "torch_compile", freezing=True, **asked),
        _peer("ONNX Runtime", "onnx_runtime", "onnxruntime", "onnxscript", **asked),
    )


def _stage(model: str, *, backend: str, calls: int, swaps: bool = False) -> Stage:
    asked: dict[str, Value] = {"model": model, "calls": calls}
    forward = Comparison(
        name=f"forward, {'8 × 128 tokens' if model == 'minilm' else 'batch 4'}",
        note=f"Mean of {calls} calls after three to warm up, 2 threads. Of the compiled sides only ours takes new "
        "weights without compiling again.",
        sides=(
            _ours(f"program ({backend})", "program", **asked),
            _peer("eager PyTorch", "eager", **asked),
            *(() if model == "minilm" else (_peer("eager, channels last", "eager", channels_last=True, **asked),)),
            *(() if model == "tiny" else _compilers(asked)),
        ),
    )
    swap = Comparison(
        name="a checkpoint in memory becomes what is served",
        note="Ours evaluates every formula (norms folded in float64) into the memory that the program reads; the peer "
        "copies and folds nothing.",
        sides=(_ours("program.rebind", "rebind", **asked), _peer("load_state_dict", "load_state_dict", **asked)),
    )
    return Stage(
        name=model,
        prepare=f"{_INFERENCE}:prepare",
        parameters={"model": model, "backend": backend},
        comparisons=(forward, swap) if swaps else (forward,),
    )


def _recalled(model: str, *, backend: str) -> Stage:
    asked: dict[str, Value] = {"model": model, "backend": backend}
    warm = Comparison(
        name="warm compile, dynamic rows",
        note="compile() of a model that the cache knows, its weights compared with the program's answers; imports and "
        "the model are there before the clock starts.",
        sides=(
            _ours("compile, in a new process", "recalled", earlier=0, **asked),
            _ours("compile, in the same process", "recalled", earlier=1, **asked),
        ),
    )
    return Stage(name=f"{model} again", prepare=f"{_INFERENCE}:prepare_recalled", parameters=asked, comparisons=(warm,))
