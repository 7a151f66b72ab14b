"""The pipeline flow: everything, with traffic running, every answer checked, and a fault at the end.

Data → v1 trained, released, deployed; then, while requests keep coming, v2 (the head fine-tuned) and v3 (everything,
a few steps) as deltas; then a drill: v4, trained on shuffled labels and let through the gate by an explicit word, is
seen by the monitor and rolled back. Every answer is compared with the oracle of :mod:`flows.proof`.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

import ingest as ingestion
import monitors
import recipes
import registry
from flows import fleets, settling, stack, training_run
from flows.artifacts import artifact_key
from flows.deploy import Deployed, deploy
from flows.drill import observe
from flows.errors import StageError
from flows.ingest import Ingested, ingest
from flows.patience import await_prefect, patiently
from flows.proof import Oracle
from flows.release import Released, release
from flows.settings import home
from flows.summary import Drill, Summary, VersionRow, as_markdown, as_metrics
from flows.traffic import PATIENCE_S, Collector, Traffic, bearable_rate
from flows.train import HELD_OUT, Trained, train
from flows.turn import turn
from flows.watch import metric_store
from monitors.scrape import TIMEOUT_S, scrape
from serving.client import Client
from serving.load import summarize

REQUEST_ROWS = 96
HEALTHY_SECONDS = 12.0  # of v3's own traffic before the drill: what the detector learns from
SETTLE_SECONDS = 1.0  # around an update: what counts as "in update"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What all versions of a run are made from."""

    recipe: str
    data: Ingested
    seed: int
    backend: str

    def trained(self, plan: str, *, start: str | None = None, shuffled_labels: bool = False) -> Trained:
        await_prefect()
        return train(
            self.recipe, self.data.folder, plan=plan, seed=self.seed, start=start, shuffled_labels=shuffled_labels
        )

    def released(self, trained: Trained, *, force: str | None = None) -> Released:
        await_prefect()
        return release(
            self.recipe, self.data.folder, trained.folder, run_id=trained.run_id, backend=self.backend, force=force
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A version with all that was measured on its way; times by the monotonic clock, in seconds."""

    trained: Trained
    released: Released
    deployed: Deployed
    deploy_began: float
    deploy_ended: float
    pause: float | None


@flow(name="pipeline", flow_run_name="pipeline of {recipe}")
def pipeline(
    recipe: str = "recipes.mnist", source: str | None = None, backend: str = "aoti", drill: bool = True
) -> str:
    """Run everything for a recipe; needs the stack of ``python -m flows up``.

    Args:
        recipe: The recipe's module.
        source: What its rows come from; by default the data that ships.
        backend: What compiles the model: ``aoti``, or ``eager`` where that refuses.
        drill: End with a spoiled version that the monitor must catch.

    Returns:
        The path of the summary, JSON.

    Raises:
        WrongAnswerError: a worker's answer was not the offline answer of the version it names.
        StageError: a request failed, or the drill's fault was not caught.
    """
    stack.room.check(home())
    patiently(lambda: settling.settle(worker_lives=True))
    loaded = recipes.load(recipe)
    with turn(loaded.name, say=get_run_logger().info):
        training_run.close_left(loaded.name, server=registry.Server.from_environment())
        return _recorded(_measured(loaded, source=source, backend=backend, drill=drill))


def _measured(loaded: recipes.Recipe, *, source: str | None, backend: str, drill: bool) -> Summary:
    began = time.monotonic()
    log = get_run_logger()
    stack.monitor.end(loaded.name, home())  # what it learned of the old versions says nothing of the new ones
    data = ingest(loaded.module_name, source)
    run = _Run(
        recipe=loaded.module_name,
        data=data,
        seed=training_run.next_seed(loaded.name, server=registry.Server.from_environment()),
        backend=backend,
    )
    first = _first(run)
    oracle = _oracle(loaded, data)
    _take_in(first.released, oracle)
    fleet = fleets.started(loaded.name)
    _check_both_forms(fleet, loaded.name, oracle)
    rate_per_s = bearable_rate(fleet, model=loaded.name, oracle=oracle)
    log.info("%s: %.1f requests a second from here on", loaded.name, rate_per_s)
    made, caught = [first], None
    load = Traffic(fleet, model=loaded.name, oracle=oracle, rate_per_s=rate_per_s)
    with load as traffic, metric_store() as store:
        start_ms = monitors.now_ms()
        with Collector(fleet, store, say=lambda fault: log.warning("%s", fault)):
            traffic.await_answer(first.released.root)
            for plan in ("head", "steps"):
                made.append(_update(run, plan, made[-1], oracle))
                traffic.await_answer(made[-1].released.root)
            time.sleep(HEALTHY_SECONDS)
            detector = _learned(store, loaded.name, start_ms=start_ms)
        _watched(loaded.name, detector)
        if drill:
            spoiled, caught = _drill(run, made[-1], oracle)
            made.append(spoiled)
    return Summary(
        model=loaded.name,
        rows=data.rows,
        rejected=data.rejected,
        versions=tuple(_row(item, later, traffic) for item, later in zip(made, [*made[1:], None], strict=True)),
        checked_answers=_checked(traffic, oracle, made),
        drill=caught,
        seconds=time.monotonic() - began,
    )


def _oracle(recipe: recipes.Recipe, data: Ingested) -> Oracle:
    """Single rows and small groups of rows that no training saw."""
    _, held_out = ingestion.open(data.folder).split(held_out=HELD_OUT)
    rows = held_out.take(range(min(REQUEST_ROWS, len(held_out))))
    names = list(recipe.dynamic)
    inputs = dict(zip(names, recipe.inputs(rows), strict=True))
    count = len(next(iter(inputs.values())))
    requests = [range(index, min(index + 1 + index % 3, count)) for index in range(count)]
    return Oracle(inputs, requests)


def _first(run: _Run) -> _Made:
    trained = run.trained("full")
    return _deployed(trained, run.released(trained), "the first version of a run")


def _deployed(trained: Trained, released: Released, reason: str) -> _Made:
    running = fleets.running(released.model)
    before = _pause_totals(running) if running else (0.0, 0.0)
    began = time.monotonic()
    await_prefect()
    deployed = deploy(released.model, released.version, reason=reason)
    ended = time.monotonic()
    after = _pause_totals(fleets.started(released.model))
    updates = after[1] - before[1]
    return _Made(
        trained=trained,
        released=released,
        deployed=deployed,
        deploy_began=began,
        deploy_ended=ended,
        pause=(after[0] - before[0]) / updates if updates > 0 else None,
    )


def _pause_totals(fleet: fleets.Fleet) -> tuple[float, float]:
    """Seconds of pauses and their number, over all workers since they started."""
    with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client:
        samples = [sample for url in fleet.workers for sample in _scraped(client, url)]
    seconds, count = (
        sum(sample.value for sample in samples if sample.name == f"treering_update_pause_seconds_{part}")
        for part in ("sum", "count")
    )
    return seconds, count


def _scraped(client: httpx.Client, url: str) -> Sequence[monitors.Sample]:
    """A worker's metrics; waits for one that was killed and is loading again."""
    deadline = time.monotonic() + fleets.PATIENCE_S
    while True:
        try:
            return scrape(client, url, now_ms=0)
        except monitors.ScrapeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(fleets.PAUSE_S)


def _check_both_forms(fleet: fleets.Fleet, model: str, oracle: Oracle) -> None:
    """JSON and binary tensors: the same answer, and the offline one."""
    for url in fleet.workers:
        for index, body in enumerate(oracle.bodies()[:4]):
            with Client(url, model=model) as client:
                oracle.check_reply(index, client.infer(body, binary=True), url=url)
                oracle.check_reply(index, client.infer(body, binary=False), url=url)


def _update(run: _Run, plan: str, before: _Made, oracle: Oracle) -> _Made:
    """The next version, trained from the last one's weights, released and deployed while traffic runs."""
    trained = run.trained(plan, start=before.trained.folder)
    released = run.released(trained)
    _take_in(released, oracle)
    oracle.require_all_different()
    return _deployed(trained, released, f"retrained by plan '{plan}'")


def _take_in(released: Released, oracle: Oracle) -> None:
    folder = registry.fetch(f"{released.model}/{released.version}")
    oracle.add(folder, root=released.root, seal=released.seal)


def _learned(store: monitors.MetricStore, model: str, *, start_ms: int) -> monitors.Detector:
    """A detector of the traffic so far; waits for more where workers or the store were away for a part of it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return monitors.learn(store, model, start_ms=start_ms, end_ms=monitors.now_ms())
        except monitors.TooFewWindowsError as error:
            if time.monotonic() > deadline:
                raise
            get_run_logger().info("%s", error)
            time.sleep(HEALTHY_SECONDS)


def _watched(model: str, detector: monitors.Detector) -> None:
    """Have a monitor process judge the model's workers from now on."""
    monitors.save_detector(detector, stack.monitor.detector_folder(model, home()))
    stack.monitor.start(model, home(), stack.required(home()))


def _drill(run: _Run, before: _Made, oracle: Oracle) -> tuple[_Made, Drill]:
    """A spoiled version goes live, is seen, and is taken back; more alarms change nothing."""
    model = before.released.model
    trained = run.trained("full", shuffled_labels=True)
    released = run.released(trained, force="a drill: trained on shuffled labels")
    _take_in(released, oracle)
    oracle.require_all_different()
    spoiled = _deployed(trained, released, "a drill")
    return spoiled, observe(model, released, back=before.released, live_since=spoiled.deploy_ended)


def _row(made: _Made, later: _Made | None, traffic: Traffic) -> VersionRow:
    start, end = made.deploy_began - SETTLE_SECONDS, made.deploy_ended + SETTLE_SECONDS
    if made.pause is None:  # the first version of a fleet updates nothing
        start = end = made.deploy_ended
    until = later.deploy_began - SETTLE_SECONDS if later else time.monotonic()
    updating, steady = summarize(traffic.between(start, end)), summarize(traffic.between(end, until))
    return VersionRow(
        version=made.released.version,
        plan=made.trained.plan,
        root=made.released.root,
        figures=made.released.figures,
        kind=made.released.kind,
        full_bytes=made.released.full_bytes,
        sent_bytes=made.released.stored_bytes,
        publish_seconds=made.released.publish_seconds,
        deploy_seconds=made.deployed.seconds,
        update_pause_seconds=made.pause,
        p50_seconds=steady.p50_s,
        p99_seconds=steady.p99_s,
        p50_update_seconds=updating.p50_s,
        p99_update_seconds=updating.p99_s,
        requests=steady.requests + updating.requests,
        failed_requests=steady.failed + updating.failed,
        resent_requests=sum(shot.sends > 1 for shot in traffic.between(start, until)),
    )


def _checked(traffic: Traffic, oracle: Oracle, made: Sequence[_Made]) -> int:
    """The number of answers, all right, and some from every version: no answers would prove nothing.

    Raises:
        WrongAnswerError: one was not.
        StageError: a request failed, or a version answered none.
    """
    failed = [shot for shot in traffic.shots if shot.reply is None]
    if failed:
        raise StageError(
            f"{len(failed)} of {len(traffic.shots)} requests failed, expected none; the first: {failed[0]}"
        )
    counts = oracle.check(traffic.shots)
    silent = [item.released.version for item in made if not counts[item.released.root]]
    if silent:
        raise StageError(f"versions {silent} answered no request; expected answers from each while it was live.")
    return counts.total()


def _recorded(summary: Summary) -> str:
    """The summary as a file, a Prefect artifact, and a run in MLflow."""
    text = as_markdown(summary)
    key, title = artifact_key("pipeline", summary.model), "what the pipeline measured"
    patiently(lambda: create_markdown_artifact(text, key=key, description=title))
    folder = home() / "runs" / summary.model / f"pipeline-{flow_run.id or 'local'}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.md").write_text(text, "utf-8")
    path = folder / "summary.json"
    path.write_text(json.dumps(summary.as_dict(), indent=1), "utf-8")
    server = registry.Server.from_environment()
    run_id = server.start_run(summary.model, name="pipeline", tags={"treering.flow_run": str(flow_run.id)})
    server.log(run_id, metrics=as_metrics(summary))
    for file in (folder / "summary.md", path):
        server.attach(run_id, file)
    server.end_run(run_id, status="FINISHED")
    return str(path)
