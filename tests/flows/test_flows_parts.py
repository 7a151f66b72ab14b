"""The parts of the flows that decide or render: the oracle, the summary, processes, settings."""

import fcntl
import json
import os
import socket
import sys
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from prefect.logging import disable_run_logger

import ckpt
import compiler
import monitors
from flows import settings, stack
from flows.__main__ import main
from flows.demo import demo
from flows.errors import PortInUseError, StackError, StageError, WrongAnswerError
from flows.fleets import Fleet
from flows.pipeline import _checked, _learned
from flows.proof import Oracle
from flows.stack import environment, fleet
from flows.stack.process import Service, end_strays, find, launch, records, stop, wait_ready
from flows.summary import Drill, Summary, VersionRow, as_markdown, as_metrics, as_text
from flows.traffic import Traffic, bearable_rate
from serving.client import Reply
from serving.errors import ReleaseRefusedError
from serving.load import Shot, summarize


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of a small model, with their program, as the release flow writes them."""
    folder = tmp_path_factory.mktemp("releases")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    dynamic = {"input": {0: compiler.Dim(name="rows", max=32)}}
    program = compiler.compile(model, (torch.randn(3, 4),), dynamic=dynamic, backend="eager")
    saved = program.save(folder / "program")
    made = []
    for number in (1, 2):
        state = {name: tensor + 0.1 * number for name, tensor in model.state_dict().items()}
        files = {f"program/{file.name}": file for file in saved.iterdir()}
        ckpt.save(state, folder / f"v{number}", attachments=files)
        made.append(folder / f"v{number}")
    return made


@pytest.fixture
def oracle(releases: list[Path]) -> Oracle:
    made = Oracle({"input": torch.randn(6, 4)}, [range(1), range(1, 4), range(4, 6)])
    for folder in releases:
        take_in(folder, made)
    return made


def take_in(folder: Path, oracle: Oracle) -> str:
    manifest = ckpt.read_manifest(folder)
    oracle.add(folder, root=manifest.root, seal=manifest.seal)
    return manifest.root


def shot(folder: Path, oracle: Oracle, request: int, *, bucket: int = 4, place: int = 0, change: float = 0.0) -> Shot:
    """What a worker answers, computed here by itself."""
    program = compiler.load(folder / "program")
    with ckpt.open(folder) as checkpoint:
        runner = program.bind({name: checkpoint[name] for name in checkpoint})
        root = checkpoint.root
    rows = torch.from_numpy(np.array(oracle.bodies()[request]["input"]))
    padded = torch.zeros(bucket, 4)
    padded[place : place + len(rows)] = rows
    (output,) = runner(padded)
    outputs = {program.outputs[0].name: output[place : place + len(rows)].numpy() + np.float32(change)}
    reply = Reply(outputs=outputs, root=root, version="1", bucket=bucket, place=place, generation=1, id=None)
    return Shot(request=request, url="http://worker", started_s=0.0, latency_s=0.0, status=200, reply=reply)


def test_right_answers_are_counted_by_root(oracle: Oracle, releases: list[Path]) -> None:
    shots = [
        shot(releases[0], oracle, 0),
        shot(releases[1], oracle, 1, bucket=8, place=3),
        shot(releases[1], oracle, 2, bucket=2),
    ]

    counts = oracle.check(shots)

    assert sorted(counts.values()) == [1, 2]
    oracle.require_all_different()


def test_an_answer_that_is_a_little_off_is_refused(oracle: Oracle, releases: list[Path]) -> None:
    with pytest.raises(WrongAnswerError, match=r"request 1 .* not what this root computes there"):
        oracle.check([shot(releases[0], oracle, 1, change=1e-6)])


def test_an_answer_under_another_root_is_refused(oracle: Oracle, releases: list[Path]) -> None:
    right = shot(releases[0], oracle, 0)
    other = shot(releases[1], oracle, 0)
    assert right.reply is not None
    assert other.reply is not None
    mixed = replace(right.reply, root=other.reply.root)

    with pytest.raises(WrongAnswerError, match="not what this root computes"):
        oracle.check_reply(0, mixed, url="http://worker")


def test_versions_that_answer_alike_prove_nothing(releases: list[Path]) -> None:
    alike = Oracle({"input": torch.randn(2, 4)}, [range(2)])
    root = take_in(releases[0], alike)
    alike._versions["sha256:other"] = alike._versions[root]

    with pytest.raises(WrongAnswerError, match="differ on every row"):
        alike.require_all_different()


def test_the_proof_runs_no_program_that_the_seal_does_not_cover(releases: list[Path]) -> None:
    manifest = ckpt.read_manifest(releases[0])
    other = ckpt.read_manifest(releases[1]).seal

    with pytest.raises(ReleaseRefusedError, match=f"found seal {manifest.seal}, expected seal {other}"):
        Oracle({"input": torch.randn(2, 4)}, []).add(releases[0], root=manifest.root, seal=other)


def test_traffic_that_breaks_is_heard_of(releases: list[Path]) -> None:
    nothing_to_send = Oracle({"input": torch.randn(1, 4)}, [])
    fleet = Fleet(url="http://127.0.0.1:9", workers=("http://127.0.0.1:9",))
    traffic = Traffic(fleet, model="m", oracle=nothing_to_send)

    with pytest.raises(ExceptionGroup, match="unhandled errors"), traffic:
        wait([traffic._sending], timeout=60)


def test_a_fleet_that_answers_nothing_gets_no_traffic(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.traffic.PATIENCE_S", 0.1)
    fleet = Fleet(url="http://127.0.0.1:9", workers=("http://127.0.0.1:9",))

    with pytest.raises(StageError, match=r"none of 24 requests to http://127.0.0.1:9 was answered within 0.1 s each"):
        bearable_rate(fleet, model="m", oracle=oracle)


def test_nothing_answered_has_no_latency() -> None:
    summary = summarize([Shot(request=0, url="http://w", started_s=0.0, latency_s=9.0, status=503)])

    assert (summary.failed, summary.p50_s, summary.p99_s, summary.longest_s) == (1, None, None, None)


def test_a_version_is_awaited_until_it_answers(
    oracle: Oracle, releases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.traffic.PATIENCE_S", 0.2)
    monkeypatch.setattr("flows.traffic.run_load", lambda *_, stop, on_shot, **__: [on_shot(answer), stop.wait(60)])
    answer = shot(releases[0], oracle, 0)
    first, second = (ckpt.read_manifest(folder).root for folder in releases)

    with Traffic(Fleet(url="", workers=()), model="m", oracle=oracle) as traffic:
        assert traffic.await_answer(first)
        assert not traffic.await_answer(second)


def test_a_detector_waits_for_traffic_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.pipeline.HEALTHY_SECONDS", 0.0)
    looks: list[int] = []

    def learn(_store: object, model: str, *, start_ms: int, end_ms: int) -> str:
        looks.append(end_ms - start_ms)
        if len(looks) < 3:
            raise monitors.TooFewWindowsError(model, found=len(looks), expected=8)
        return "detector"

    monkeypatch.setattr("monitors.learn", learn)
    store: Any = None

    with disable_run_logger():
        assert _learned(store, "m", start_ms=0) == "detector"
        monkeypatch.setattr("flows.pipeline.PATIENCE_S", -1.0)
        looks.clear()
        with pytest.raises(monitors.TooFewWindowsError):
            _learned(store, "m", start_ms=0)

    assert len(looks) == 1


def test_a_version_that_answered_nothing_fails_the_proof(oracle: Oracle, releases: list[Path]) -> None:
    traffic = Traffic(Fleet(url="", workers=()), model="m", oracle=oracle)
    traffic.shots = [shot(releases[0], oracle, 0)]
    roots = [ckpt.read_manifest(folder).root for folder in releases]
    made: Any = [
        SimpleNamespace(released=SimpleNamespace(version=number, root=root)) for number, root in enumerate(roots, 1)
    ]

    assert _checked(traffic, oracle, made[:1]) == 1
    with pytest.raises(StageError, match=r"versions \[2\] answered no request"):
        _checked(traffic, oracle, made)


def row(version: int, **changes: object) -> VersionRow:
    facts: dict[str, object] = {
        "version": version,
        "plan": "full",
        "root": "sha256:ab",
        "figures": {"accuracy": 0.98},
        "kind": "delta",
        "full_bytes": 2_000_000,
        "sent_bytes": 20_000,
        "publish_seconds": 0.5,
        "deploy_seconds": 0.6,
        "update_pause_seconds": 0.00005,
        "p50_seconds": 0.002,
        "p99_seconds": 0.01,
        "p50_update_seconds": None,
        "p99_update_seconds": None,
        "requests": 1000,
        "failed_requests": 0,
        "resent_requests": 0,
    }
    return VersionRow(**(facts | changes))  # type: ignore[arg-type]


@pytest.fixture
def summary() -> Summary:
    drill = Drill(
        detection_seconds=4.0,
        rollback_seconds=0.4,
        reason="anomaly score 20.0: margin_mean 0.0802 (usually 6.02), class_distance 0.785 (usually 0.0776)",
        back_at_version=3,
        further_alarms=4,
        moved_by_further_alarms=0,
    )
    versions = tuple(row(number) for number in (1, 2, 3, 4))
    return Summary(
        model="mnist",
        rows=5000,
        rejected={"not-finite": 2},
        versions=versions,
        checked_answers=4000,
        drill=drill,
        seconds=99.0,
    )


def test_the_summary_fits_80_columns(summary: Summary) -> None:
    lines = as_text(summary).splitlines()

    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["patch", "ratio", "100.0", "100.0", "100.0", "100.0"] for line in lines)
    assert "2 not-finite" in as_text(summary)


def test_the_summary_reads_the_same_for_machines(summary: Summary) -> None:
    metrics = as_metrics(summary)

    assert Summary.from_dict(json.loads(json.dumps(summary.as_dict()))) == summary
    assert metrics["v2_patch_ratio"] == 100.0
    assert metrics["v1_accuracy"] == 0.98
    assert metrics["drill_detection_seconds"] == 4.0
    assert "| patch ratio | 100.0 |" in as_markdown(summary)


def sleeper(name: str, home: Path, seconds: int = 600) -> Service:
    return Service(
        name=name,
        command=(sys.executable, "-c", f"import time; print('here', flush=True); time.sleep({seconds})"),
        url="http://127.0.0.1:1",
        ready=lambda: True,
        environment={**os.environ, "TREERING_STACK": str(home)},
    )


def test_what_was_started_is_found_and_stopped(tmp_path: Path) -> None:
    record = launch(sleeper("a", tmp_path), tmp_path)

    assert find(tmp_path, "a") == record
    assert launch(sleeper("a", tmp_path), tmp_path) == record
    stop(record, tmp_path)

    assert find(tmp_path, "a") is None
    assert records(tmp_path) == []
    assert not psutil.pid_exists(record.pid) or record.process() is None


def test_a_reused_pid_is_never_ours(tmp_path: Path) -> None:
    record = launch(sleeper("a", tmp_path), tmp_path)
    stop(record, tmp_path)
    claim = {"name": "a", "url": record.url, "log": record.log, "pid": os.getpid(), "started": "boot 1"}
    (tmp_path / "stack" / "a.process.json").write_text(json.dumps(claim))

    assert find(tmp_path, "a") is None
    stop(records(tmp_path)[0], tmp_path)  # must not signal this very process

    assert records(tmp_path) == []


def test_strays_are_ended_and_others_left_alone(tmp_path: Path) -> None:
    stray = launch(sleeper("stray", tmp_path), tmp_path)
    other = launch(sleeper("other", tmp_path / "another"), tmp_path / "another")
    try:
        assert end_strays(tmp_path) == 1
        assert stray.process() is None
        assert other.process() is not None
    finally:
        stop(other, tmp_path / "another")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(PortInUseError, match=rf"mlflow cannot listen on 127.0.0.1:{port}: process {os.getpid()}"):
            launch(sleeper("mlflow", tmp_path), tmp_path, port=port)

    assert records(tmp_path) == []


def test_an_up_that_failed_leaves_no_addresses_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(
            environment, "DEFAULT_PORTS", dict.fromkeys(environment.DEFAULT_PORTS, taken.getsockname()[1])
        )

        with pytest.raises(PortInUseError):
            stack.up(tmp_path, say=lambda _: None)

    assert stack.read(tmp_path) is None


def test_a_second_demo_in_one_folder_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "demo.lock", "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)

        with pytest.raises(StackError, match="another demo runs"):
            demo(tmp_path, recipes=["recipes.wine"], free_ports=True, keep=False, say=lambda _: None)

    assert records(tmp_path) == []


def test_a_demo_that_fails_leaves_a_stack_running_that_it_found_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StackError("Prefect refused")

    monkeypatch.setattr("flows.demo.start", refuse)
    record = launch(sleeper("fleet-mine", tmp_path), tmp_path)

    with pytest.raises(StackError, match="Prefect refused"):
        demo(tmp_path, recipes=["recipes.wine"], free_ports=True, keep=False, say=lambda _: None)

    assert record.process() is not None
    stop(record, tmp_path)


def test_a_recipe_that_cannot_be_loaded_is_named_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="nosuch_recipe"):
        demo(tmp_path, recipes=["recipes.wine", "nosuch_recipe"], free_ports=True, keep=False, say=lambda _: None)

    assert not (tmp_path / "stack").exists()


def test_a_summary_that_cannot_be_written_is_named_before_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREERING_HOME", str(tmp_path))
    monkeypatch.setattr(stack.guard, "arm", lambda *_: None)  # it would stay for all tests of this process
    (tmp_path / "file").touch()

    assert main(["demo", "--json", str(tmp_path / "file" / "summary.json")]) == 1
    assert "expected a place for a file" in capsys.readouterr().err


def test_an_empty_variable_names_no_state_folder_and_a_tilde_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREERING_HOME", "")
    assert settings.home() == settings.REPOSITORY / ".treering"

    monkeypatch.setenv("TREERING_HOME", "~/rings")
    assert settings.home() == Path.home() / "rings"


def test_a_service_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    service = Service(
        name="bad",
        command=(sys.executable, "-c", "print('no such option', flush=True)"),
        url="",
        ready=lambda: False,
        environment=dict(os.environ),
    )
    record = launch(service, tmp_path)

    with pytest.raises(StackError, match=r"bad ended while starting[\s\S]*no such option"):
        wait_ready(service, record)
    stop(record, tmp_path)


def test_the_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    first, second = fleet.token_file(tmp_path), fleet.token_file(tmp_path)

    assert first.read_text() == second.read_text()
    assert len(first.read_text()) >= 32
    assert first.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_a_token_is_rotated_by_a_command_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREERING_HOME", str(tmp_path))
    first = fleet.token_file(tmp_path).read_text()

    assert main(["token", "rotate"]) == 0

    second = fleet.token_file(tmp_path).read_text()
    assert first != second
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
    assert second not in capsys.readouterr().out


def test_a_token_that_others_can_read_stops_an_up_before_anything_is_started(tmp_path: Path) -> None:
    fleet.token_file(tmp_path).chmod(0o644)

    with pytest.raises(StackError, match=r"found mode 644.*chmod 600.*'python -m flows token rotate'"):
        stack.up(tmp_path, say=lambda _: None)

    assert records(tmp_path) == []


def test_the_command_line_says_that_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREERING_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin")

    assert (main(["status"]), main(["env"]), main(["down"])) == (1, 1, 0)

    nothing, said = f"nothing runs in {tmp_path}", capsys.readouterr()
    assert said.out.splitlines() == [f"{nothing}; start it with 'python -m flows up'", nothing]
    assert said.err == f"{nothing}; start it with 'python -m flows up'\n"
