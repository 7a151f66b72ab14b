"""Stage, flip, undo: whole or not at all, and never two steps back."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.errors import NothingToUndoError, NotStagedError, ReleaseRefusedError
from serving.protocol import Answer, InferRequest, WantedOutput

Play = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

X = torch.arange(8, dtype=torch.float32).reshape(2, 4)


async def ask(rig: Any, x: torch.Tensor = X) -> Answer:
    request = InferRequest(id=None, rows=len(x), arrays=(x.numpy(),), wanted=(WantedOutput(position=0, binary=True),))
    answer: Answer = await rig.batcher.submit(request)
    return answer


def same_bits(answer: Answer, expected: torch.Tensor) -> bool:
    return answer.outputs[0].tobytes() == expected.numpy().tobytes()


def test_a_flip_changes_the_answer_and_raises_the_generation(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))

            staged = await r.stage(folder, root=root, version="2")
            before = await ask(r)
            flipped = await r.updater.flip(root)
            after = await ask(r)

            assert (staged.outcome, staged.standing.root, staged.standing.staged_root) == ("staged", r.root, root)
            assert (before.root, before.version, before.generation) == (r.root, "1", 1)
            assert same_bits(before, r.offline(tiny.tensors(1), X, bucket=2))
            assert (flipped.outcome, flipped.standing.previous_root) == ("flipped", r.root)
            assert (after.root, after.version, after.generation) == (root, "2", 2)
            assert same_bits(after, r.offline(tiny.tensors(2), X, bucket=2))

    play(scenario)


def test_only_formulas_of_changed_tensors_are_evaluated(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            tensors = {**tiny.tensors(1), "bias": tiny.tensors(2)["bias"]}
            folder, root = r.shelf.put("v2", tensors)

            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            answer = await ask(r)

            assert r.program.evaluated[-1] == {"bias"}
            assert same_bits(answer, r.offline(tensors, X, bucket=2))

    play(scenario)


def test_undo_goes_back_without_opening_a_folder(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            r.shelf.folders.clear()

            step = await r.updater.undo(root)
            answer = await ask(r)

            assert (step.outcome, step.standing.root, step.standing.generation) == ("undone", r.root, 3)
            assert step.standing.previous_root is None
            assert (answer.root, answer.generation) == (r.root, 3)
            assert same_bits(answer, r.offline(tiny.tensors(1), X, bucket=2))

    play(scenario)


def test_a_repeated_undo_does_nothing(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            await r.updater.undo(root)

            again = await r.updater.undo(root)

            assert (again.outcome, again.standing.root, again.standing.generation) == ("noop", r.root, 3)
            with pytest.raises(NothingToUndoError):
                await r.updater.undo(r.root)

    play(scenario)


def test_a_wrong_root_is_refused_and_nothing_changes(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, _ = r.shelf.put("v2", tiny.tensors(2))
            before = r.updater.standing

            with pytest.raises(ReleaseRefusedError):
                await r.stage(folder, root="sha256:" + "0" * 64, version="2")

            assert r.updater.standing == before
            assert same_bits(await ask(r), r.offline(tiny.tensors(1), X, bucket=2))

    play(scenario)


@pytest.mark.parametrize("change", ["missing", "dtype", "shape"])
def test_a_checkpoint_of_another_model_is_refused_by_its_tensor(change: str, rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            good_folder, good_root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(good_folder, root=good_root, version="2")
            await r.updater.flip(good_root)
            tensors = tiny.tensors(3)
            if change == "missing":
                del tensors["scale"]
            elif change == "dtype":
                tensors["scale"] = tensors["scale"].double()
            else:
                tensors["scale"] = tensors["scale"][:2].contiguous()
            folder, root = r.shelf.put("v3", tensors)

            with pytest.raises(ReleaseRefusedError, match="tensor 'scale'"):
                await r.stage(folder, root=root, version="3")

            assert r.updater.standing.previous_root == r.root  # the way back is still there

    play(scenario)


def test_a_flip_without_its_stage_is_refused(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")

            with pytest.raises(NotStagedError):
                await r.updater.flip("sha256:" + "0" * 64)

            assert r.updater.standing.root == r.root

    play(scenario)


def test_what_is_live_staged_or_previous_is_not_read_again(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            opened = list(r.shelf.opened)

            live = await r.stage(folder, root=root, version="2")
            previous = await r.stage(Path("/shelf/v1"), root=r.root, version="1")
            back = await r.updater.flip(r.root)

            assert (live.outcome, previous.outcome, back.outcome) == ("noop", "staged", "flipped")
            assert r.shelf.opened == opened
            assert same_bits(await ask(r), r.offline(tiny.tensors(1), X, bucket=2))

    play(scenario)


def test_many_updates_there_and_back_are_exact(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            for turn in range(2, 12):
                tensors = tiny.tensors(turn % 3)
                folder, root = r.shelf.put(f"v{turn}", tensors)
                await r.stage(folder, root=root, version=str(turn))
                await r.updater.flip(root)

                answer = await ask(r)

                assert answer.generation == turn
                assert same_bits(answer, r.offline(tensors, X, bucket=2))

    play(scenario)


def test_a_failed_exchange_leaves_the_old_version_live(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            r.program.runners[0].swap_fails = True

            with pytest.raises(RuntimeError, match="the binding failed"):
                await r.updater.flip(root)
            answer = await ask(r)

            assert (answer.root, answer.generation) == (r.root, 1)
            assert same_bits(answer, r.offline(tiny.tensors(1), X, bucket=2))
            assert (await r.updater.flip(root)).outcome == "flipped"

    play(scenario)


def test_an_undo_does_not_wait_for_a_staging_in_progress(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            third_folder, third_root = r.shelf.put("v3", tiny.tensors(3))
            reading, undone = threading.Event(), threading.Event()

            def hold() -> None:
                reading.set()
                assert undone.wait(timeout=30)

            r.shelf.reading = hold
            staging = asyncio.create_task(r.stage(third_folder, root=third_root, version="3"))
            await asyncio.to_thread(reading.wait, 30)

            step = await r.updater.undo(root)
            undone.set()
            await staging
            first = await ask(r)
            await r.updater.flip(third_root)
            third = await ask(r)

            assert step.standing.root == r.root
            assert same_bits(first, r.offline(tiny.tensors(1), X, bucket=2))
            assert same_bits(third, r.offline(tiny.tensors(3), X, bucket=2))

    play(scenario)


def test_another_program_with_the_same_face_is_taken_and_left_again(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            program = tiny.Program(digest="sha256:" + "b" * 64)
            folder, root = r.shelf.put("v2", tiny.tensors(2), program)

            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            after = await ask(r)
            await r.updater.undo(root)
            back = await ask(r)

            assert len(program.runners) == 1
            assert same_bits(after, r.offline(tiny.tensors(2), X, bucket=2))
            assert same_bits(back, r.offline(tiny.tensors(1), X, bucket=2))

    play(scenario)


def test_a_program_with_another_face_is_refused(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            inputs = (tiny.Spec("y", "float32", (None, 4)),)
            program = tiny.Program(digest="sha256:" + "b" * 64, inputs=inputs)
            folder, root = r.shelf.put("v2", tiny.tensors(2), program)

            with pytest.raises(ReleaseRefusedError, match="which are live"):
                await r.stage(folder, root=root, version="2")

            assert r.updater.standing.staged_root is None

    play(scenario)


@pytest.mark.parametrize("shape", [(4,), (None, None), (2, 4), ()])
def test_a_program_that_cannot_be_batched_by_rows_is_refused(shape: tuple[int | None, ...], tiny: Any) -> None:
    from serving.weights import describe

    with pytest.raises(ReleaseRefusedError, match="dynamic first dimension"):
        describe(tiny.Program(inputs=(tiny.Spec("x", "float32", shape),)), name="m", max_rows=4)


def test_answers_under_updates_come_from_exactly_one_version(rig: Any, tiny: Any, play: Play) -> None:
    """Flips among hundreds of requests: each answer equals, at its bucket, the offline answer of the root it names."""

    async def scenario() -> None:
        async with rig() as r:
            tensors = {root: t for t in (tiny.tensors(1), tiny.tensors(2)) for root in (tiny.root(t),)}
            folders = {root: r.shelf.put(root[-8:], t)[0] for root, t in tensors.items()}
            answers: list[tuple[torch.Tensor, Answer]] = []
            updated = asyncio.Event()

            async def client(seed: int) -> None:
                generator = torch.Generator().manual_seed(seed)
                while not updated.is_set():
                    x = torch.randn(int(torch.randint(1, 6, (), generator=generator)), 4, generator=generator)
                    answers.append((x, await ask(r, x)))

            async def updates() -> None:
                for turn in range(20):
                    root = list(tensors)[(turn + 1) % 2]
                    await r.stage(folders[root], root=root, version=str(turn))
                    await r.updater.flip(root)
                    answers.append((torch.ones(1, 4), await ask(r, torch.ones(1, 4))))
                    assert answers[-1][1].root == root
                updated.set()

            await asyncio.gather(updates(), *(client(seed) for seed in range(6)))

            assert len(answers) >= 26
            assert {answer.root for _, answer in answers} == set(tensors)
            for x, answer in answers:
                assert same_bits(answer, r.offline(tensors[answer.root], x, bucket=answer.bucket))

    play(scenario)


def test_the_pause_and_the_outcomes_are_counted(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            await r.updater.flip(root)
            await r.updater.undo(root)
            await r.updater.undo(root)
            with pytest.raises(ReleaseRefusedError):
                await r.stage(folder, root="sha256:" + "0" * 64, version="3")

            text = r.service.metrics.text().decode()

            for outcome in ("staged", "flipped", "undone", "noop", "refused"):
                assert f'treering_updates_total{{model="tiny",outcome="{outcome}"}} 1.0' in text
            assert 'treering_update_pause_seconds_count{model="tiny"} 2.0' in text
            assert 'treering_generation{model="tiny"} 3.0' in text
            assert text.count("treering_model_info{") == 1
            assert f'root="{r.root}",version="1"' in text

    play(scenario)


def test_arenas_leave_nothing_behind(tiny: Any) -> None:
    before = set(Path("/dev/shm").iterdir())

    from serving.weights import Arena

    arenas = [Arena(1 << 20) for _ in range(3)]
    torch.frombuffer(arenas[0].buffer, dtype=torch.uint8).fill_(7)
    arenas[1].copy_from(arenas[0])

    assert bytes(arenas[1].buffer) == b"\x07" * (1 << 20)
    assert set(Path("/dev/shm").iterdir()) == before
    assert np.frombuffer(arenas[2].buffer, dtype=np.uint8).max() == 0
