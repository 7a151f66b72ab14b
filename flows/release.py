"""The release flow: weights become a version: compiled, verified, judged, checkpointed, published.

The program is compiled once for a graph; later versions of the same graph reuse it byte for byte, so their deltas
hold changed weights only. The recipe's gate holds back what is not good enough, unless told why to let it pass.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from prefect import flow, get_run_logger
from prefect.runtime import flow_run

import ckpt
import compiler
import ingest as ingestion
import recipes
import registry
from compiler.explanation import as_text
from flows.errors import GateError
from flows.settings import REPOSITORY, home
from flows.train import HELD_OUT, share_cores, shown, weights_of
from registry.cache import Cache
from serving.release import PROGRAM_FOLDER
from serving.schedule import BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A version in the registry."""

    model: str
    version: int
    root: str
    seal: str
    kind: str
    stored_bytes: int
    full_bytes: int
    publish_seconds: float
    figures: dict[str, float]
    program: str


@flow(name="release", flow_run_name="release {recipe}")
def release(
    recipe: str,
    dataset: str,
    weights: str,
    run_id: str | None = None,
    backend: str = "aoti",
    force: str | None = None,
) -> Released:
    """Compile, verify, judge and publish weights.

    Args:
        recipe: The recipe's module.
        dataset: A folder that the ingest flow made; its held-out rows judge the compiled program.
        weights: A checkpoint that the train flow made.
        run_id: The MLflow run the weights come from.
        backend: ``aoti`` or ``eager``.
        force: Why to release figures below the gate.

    Raises:
        VerificationError: the compiled program strays from the model; nothing is published.
        NotFiniteError: an answer on held-out rows is NaN or infinite, whatever ``force`` says.
        GateError: the figures are below the recipe's gate.
    """
    log = get_run_logger()
    share_cores()
    loaded = recipes.load(recipe)
    _, held_out = ingestion.open(dataset).split(held_out=HELD_OUT)
    tensors = weights_of(weights)
    program = compile_recipe(loaded, tensors, held_out, backend=backend)
    figures = loaded.judge(program.bind(tensors), held_out)
    failures = loaded.gate_failures(figures)
    if failures and not force:
        raise GateError(loaded.name, failures)
    if failures:
        log.warning("released below the gate (%s): %s", force, "; ".join(failures))
    version = _publish(loaded, program, tensors, figures, run_id=run_id, forced=force if failures else None)
    log.info(
        "%s: %s, %s bytes stored of %s, %s", version.reference, version.kind, f"{version.stored_bytes:,}",
        f"{version.full_bytes:,}", shown(figures),
    )  # fmt: skip
    return Released(
        model=loaded.name,
        version=version.number,
        root=version.root,
        seal=version.seal,
        kind=version.kind,
        stored_bytes=version.stored_bytes,
        full_bytes=version.full_bytes,
        publish_seconds=version.publish_seconds,
        figures=figures,
        program=program.digest,
    )


def compile_recipe(
    recipe: recipes.Recipe, tensors: Mapping[str, torch.Tensor], data: ingestion.Dataset, *, backend: str
) -> compiler.Program:
    """A verified program of a recipe's model; a graph that was built before is not built again."""
    model = recipe.build(seed=0)
    model.load_state_dict(dict(tensors))
    dynamic = {
        name: {axis: compiler.Dim(name=label, max=max(BUCKETS)) for axis, label in axes.items()}
        for name, axes in recipe.dynamic.items()
    }
    log = get_run_logger()
    return compiler.compile(
        model.eval(),
        recipe.example_inputs(data),
        dynamic=dynamic,
        backend=backend,
        cache=home() / "cache" / "programs",
        progress=lambda stage, share: log.info("compile %3.0f %%  %s", 100 * share, stage),
    )


def _publish(
    recipe: recipes.Recipe,
    program: compiler.Program,
    tensors: Mapping[str, torch.Tensor],
    figures: dict[str, float],
    *,
    run_id: str | None,
    forced: str | None,
) -> registry.Version:
    facts = {"recipe": recipe.module_name, "program": program.digest, **({"forced": forced} if forced else {})}
    with Cache(home() / "cache").workspace() as work:
        folder = program.save(work / PROGRAM_FOLDER)
        compiled = {
            f"{PROGRAM_FOLDER}/{file.relative_to(folder)}": file for file in folder.rglob("*") if file.is_file()
        }
        attachments = {**_own_attachments(recipe), **compiled}
        ckpt.save(dict(tensors), work / "checkpoint", attachments=attachments, metadata=facts)
        return registry.publish(
            work / "checkpoint",
            name=recipe.name,
            metrics=figures,
            tags={**facts, **_origin()},
            pages={"compile.md": f"```\n{as_text(program)}\n```\n", "graph.dot": program.dot()},
            run_id=run_id,
        )


def _own_attachments(recipe: recipes.Recipe) -> Mapping[str, Path]:
    own = recipe.attachments()
    taken = [path for path in own if path.split("/")[0] == PROGRAM_FOLDER]
    if taken:
        raise recipes.InvalidRecipeError(
            recipe.module_name,
            member="attachments()",
            found=f"files at {', '.join(taken)}",
            expected=f"none under '{PROGRAM_FOLDER}/', where the compiled program lies",
        )
    return own


def _origin() -> dict[str, str]:
    """Where a version comes from: the commit of this checkout, where it is one, and the flow run."""
    run = {"flow_run": str(flow_run.id)} if flow_run.id else {}
    if not (REPOSITORY / ".git").exists():
        return run
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {**run, "git_commit": found.stdout.strip()} if found.returncode == 0 else run
