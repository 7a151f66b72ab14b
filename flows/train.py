"""The train flow: a data set becomes weights; loss and accuracy go to MLflow, progress to Prefect."""

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import torch
from prefect import flow, get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.runtime import flow_run

import ckpt
import ingest as ingestion
import recipes
import registry
from flows.artifacts import artifact_key
from flows.patience import patiently
from flows.settings import home
from flows.summary import short
from flows.training_run import ending

HELD_OUT = 0.1
REPORTS = 10  # progress lines in a training


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Weights on this machine: a checkpoint of a flat state dict, and how they did on held-out rows."""

    folder: str
    root: str
    plan: str
    figures: dict[str, float]
    run_id: str


@flow(name="train", flow_run_name="train {recipe} by plan {plan}")
def train(
    recipe: str,
    dataset: str,
    plan: str = "full",
    seed: int = 0,
    start: str | None = None,
    shuffled_labels: bool = False,
) -> Trained:
    """Train a recipe's model by one of its plans.

    Args:
        recipe: The recipe's module.
        dataset: A folder that the ingest flow made.
        plan: A key of the recipe's ``PLANS``: ``full``, ``head``, ``steps``.
        seed: Of the weights, the order of the rows, dropout.
        start: A checkpoint of weights to go on from; by default fresh ones.
        shuffled_labels: Train on labels in a wrong order: a fault on purpose, for drills.

    Raises:
        UnknownPlanError: the recipe has no such plan.
        NotFiniteError: a loss or an answer on held-out rows is NaN or infinite; nothing is kept.
        CorruptShardError: the data set is not what was ingested.
    """
    share_cores()
    loaded = recipes.load(recipe)
    rows, held_out = ingestion.open(dataset).split(held_out=HELD_OUT)
    model = loaded.build(seed=seed)
    if start is not None:
        ckpt.load_into(model, start, verify="sha256")
    loaded.judge(model, held_out)  # so that a mistake in judging is named before the training, not after it
    data = rows.with_shuffled_labels(seed) if shuffled_labels else rows
    server = registry.Server.from_environment()
    tags = {"treering.recipe": recipe, "treering.plan": plan, "treering.flow_run": str(flow_run.id)}
    run_id = server.start_run(loaded.name, name=f"{loaded.name} {plan}", tags=tags)
    with ending(server, run_id):
        params = {"plan": plan, "seed": str(seed), "dataset": rows.digest, "rows": str(len(data))}
        server.describe(run_id, params=params)
        loaded.train(model, data, plan=plan, seed=seed, report=_Reporter(server, run_id, loaded.name, plan))
        figures = loaded.judge(model, held_out)
        server.log(run_id, metrics={f"held_out_{name}": value for name, value in figures.items()})
    return _saved(loaded.name, model, plan=plan, figures=figures, run_id=run_id)


def share_cores() -> None:
    """Leave half of the cores to the servers and workers of this machine.

    Threads that wait for a core they do not get are slower than fewer threads: on two cores beside two serving workers
    the drill's training took 67 s with two threads and 24 s with one, in two runs of the demo under other load.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))


def _saved(name: str, model: torch.nn.Module, *, plan: str, figures: dict[str, float], run_id: str) -> Trained:
    folder = home() / "runs" / name / run_id
    manifest = ckpt.save(dict(model.state_dict()), folder, metadata={"mlflow_run": run_id})
    get_run_logger().info("trained by plan '%s': %s, %s", plan, shown(figures), short(manifest.root))
    return Trained(folder=str(folder), root=manifest.root, plan=plan, figures=figures, run_id=run_id)


def shown(figures: dict[str, float]) -> str:
    """Figures in one line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())


class _Reporter:
    """Tells of every tenth of a training: a line in the log, a progress artifact, two metrics."""

    def __init__(self, server: registry.Server, run_id: str, model: str, plan: str) -> None:
        self._server, self._run_id, self._plan = server, run_id, plan
        key, description = artifact_key("training", model), f"training '{model}' by plan '{plan}'"
        artifact = patiently(lambda: create_progress_artifact(0.0, key=key, description=description))
        assert isinstance(artifact, UUID), "called outside a loop, it answers at once"
        self._artifact = artifact
        self._log = get_run_logger()

    def __call__(self, step: recipes.Step) -> None:
        if step.step % max(1, step.steps // REPORTS) and step.step != step.steps:
            return
        share = step.step / step.steps
        self._log.info(
            "train %-6s %3.0f %%  loss %.4f  accuracy %.3f", self._plan, 100 * share, step.loss, step.accuracy
        )
        patiently(lambda: update_progress_artifact(self._artifact, 100 * share))
        self._server.log(self._run_id, metrics={"loss": step.loss, "accuracy": step.accuracy}, step=step.step)


def weights_of(folder: str) -> dict[str, torch.Tensor]:
    """The tensors of a trained checkpoint, every byte proved."""
    state = ckpt.load(Path(folder), verify="sha256")
    assert isinstance(state, dict), "the train flow saves flat state dicts"
    return state
