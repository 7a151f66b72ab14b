"""A program may hold packages for several machines: each says what it needs, and the nearest that fits is taken."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

import compiler
from compiler.backends import Target, aoti, instruction_sets
from compiler.definition import Definition
from compiler.interpreter import Interpreter

OLD = "avx2 bmi1 bmi2 f16c fma abm movbe sse2"
NEW = f"{OLD} avx512f avx512vl amx_tile"


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Flags → a machine that lists these."""

    def be(flags: str) -> None:
        listing = tmp_path / str(abs(hash(flags)))
        listing.write_text(f"processor: 0\nflags : {flags}\n")
        monkeypatch.setattr(instruction_sets, "CPU_LISTING", listing)

    return be


def target(requirement: str) -> Target:
    return Target.describe(requirement.encode(), backend="aoti", requirement=requirement, suffix=".pt2")


def test_native_is_spelled_out(cpu) -> None:  # type: ignore[no-untyped-def]
    cpu(NEW)
    assert instruction_sets.requirement_here("native") == "x86-64-v3+amx_tile+avx512f+avx512vl"
    assert instruction_sets.requirement_here("x86-64-v3") == "x86-64-v3"

    cpu(OLD)
    assert instruction_sets.requirement_here("native") == "x86-64-v3"


@pytest.mark.parametrize(
    ("flags", "requirement", "said"),
    [
        (NEW, "x86-64-v3+avx512f", ""),
        (OLD, "x86-64-v3", ""),
        (OLD, "x86-64-v3+avx512f+avx512vl", "this CPU lacks avx512f, avx512vl"),
        ("sse2", "x86-64-v3", "this CPU lacks abm, avx2, bmi1, bmi2, f16c, fma, movbe"),
        (NEW, "sm_90", "'sm_90' is no instruction set that is known here"),
        (NEW, "x86-64-v3+", "this CPU lacks "),
    ],
)
def test_what_a_machine_lacks_is_said(cpu, flags: str, requirement: str, said: str) -> None:  # type: ignore[no-untyped-def]
    cpu(flags)

    assert instruction_sets.lacks(requirement) == said


def test_the_nearest_that_fits_is_taken_and_none_is_refused_with_a_reason(cpu) -> None:  # type: ignore[no-untyped-def]
    pinned, native = target("x86-64-v3"), target("x86-64-v3+avx512f")

    cpu(NEW)
    assert aoti.BACKEND.choose([pinned, native]) == native
    cpu(OLD)
    assert aoti.BACKEND.choose([native, pinned]) == pinned
    assert aoti.BACKEND.choose([native]) == native
    assert aoti.BACKEND.choose([]) is None


def test_packages_of_several_machines_have_names_of_their_own() -> None:
    paths = [target(requirement).path for requirement in ("x86-64-v3", "x86-64-v3+avx512f", "x86-64-v3+sse4a")]

    assert paths[0] == "targets/aoti-x86-64-v3.pt2"
    assert len(set(paths)) == 3
    assert all(path.startswith("targets/aoti-x86-64-v3") and "+" not in path for path in paths)


def test_each_package_goes_to_disk_and_back(eager_program: compiler.Program, tmp_path: Path) -> None:
    targets = tuple(target(requirement) for requirement in ("x86-64-v3", "x86-64-v3+avx512f"))
    packages = {one.path: one.requirement.encode() for one in targets}
    program = replace(eager_program, backend="aoti", targets=targets, packages=packages)

    loaded = compiler.load(program.save(tmp_path / "program"))

    assert loaded == program


def test_code_for_another_machine_is_refused_by_name(eager_program: compiler.Program, cpu) -> None:  # type: ignore[no-untyped-def]
    one = target("x86-64-v3+avx512f")
    program = replace(eager_program, backend="aoti", targets=(one,), packages={one.path: b""})
    cpu(OLD)

    with pytest.raises(compiler.BackendRefusedError, match=r"needs x86-64-v3\+avx512f and this CPU lacks avx512f"):
        program.load_runner(program.allocate())


def test_code_is_built_for_the_base_or_for_all_that_a_cpu_has(eager_program: compiler.Program, cpu) -> None:  # type: ignore[no-untyped-def]
    cpu(NEW)

    with pytest.raises(compiler.BackendRefusedError, match=r"not for x86-64-v3\+avx512f.*'x86-64-v3' or 'native'"):
        aoti.BACKEND.refuse(eager_program.definition, requirement="x86-64-v3+avx512f")


class _Specialised:
    """Code that answers for one number of rows, whatever it is asked."""

    def __init__(self, definition: Definition, rows: int) -> None:
        self._interpreter, self._rows = Interpreter(definition), rows
        self._constants: Sequence[Tensor] = ()

    def prepare(self, constants: Sequence[Tensor]) -> Sequence[Tensor]:
        return constants

    def bind(self, prepared: Sequence[Tensor]) -> None:
        self._constants = prepared

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        rows = [tensor[:1].expand(self._rows, *tensor.shape[1:]).contiguous() for tensor in inputs]
        return self._interpreter.run(rows, self._constants)


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_a_specialised_dimension_is_seen_before_anything_is_packaged(
    eager_program: compiler.Program, rows: int
) -> None:
    with pytest.raises(compiler.BuildError, match=rf"dimension was specialised: output 'output' is \({rows}, 10\)"):
        aoti.refuse_specialised(eager_program.definition, _Specialised(eager_program.definition, rows))


def test_code_that_fails_at_a_size_is_seen_likewise(eager_program: compiler.Program) -> None:
    class Fails(_Specialised):
        def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
            raise RuntimeError("expected 3 rows")

    with pytest.raises(compiler.BuildError, match=r"fails at \{'batch': 1\}: expected 3 rows"):
        aoti.refuse_specialised(eager_program.definition, Fails(eager_program.definition, 1))
