"""Checkpoints that follow each other, with the deltas between them."""

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

import ckpt
from ckpt.deltas.codecs import CODECS
from tests.ckpt.signers import OLD, noon

ADDING = ("sparse", "planes")
SIGNER = ckpt.signer(OLD, line="mnist", now=noon)


def save_chain(
    folder: Path, states: Sequence[object], *, codecs: Collection[str] = tuple(CODECS), sign: bool = False
) -> list[Path]:
    """Checkpoints ``0``, ``1``, … and the deltas between them, which are given."""
    who = SIGNER if sign else None
    for number, state in enumerate(states):
        (folder / f"{number}.txt").write_text("tokens\n" * 100 * (number + 1))
        attached = {"vocab.txt": folder / f"{number}.txt", f"only-{number}.txt": folder / "0.txt"}
        ckpt.save(state, folder / f"{number}", attachments=attached, metadata={"step": f"{number}"}, sign=who)
    deltas = [folder / f"delta-{number}" for number in range(1, len(states))]
    for number, delta in enumerate(deltas):
        ckpt.diff(folder / f"{number}", folder / f"{number + 1}", delta, sequence=number, codecs=codecs, sign=who)
    return deltas


def training() -> list[dict[str, torch.Tensor]]:
    """Four steps of a few elements and of all; tensors come, go, grow, turn to another dtype or name."""
    torch.manual_seed(0)
    one = {
        "sparse": torch.randn(1_500_000).bfloat16(),
        "dense": torch.randn(1000),
        "same": torch.randn(300),
        "table": torch.randn(50, 16),
        "cast": torch.randn(100),
        "goes": torch.randn(5),
        "stride": torch.randn(6, 7).T,
    }
    two = moved(one, 0) | {"table": torch.cat([one["table"][:20], torch.randn(2, 16), one["table"][20:]])}
    two["renamed"] = two.pop("same")
    two["comes"] = torch.randn(7)
    del two["goes"]
    three = moved(two, 1) | {"cast": two["cast"].bfloat16(), "goes": torch.randn(5)}
    four = moved(three, 2) | {"comes": two["comes"] + 1, "table": three["table"][:9]}
    return [one, two, three, four]


def moved(state: dict[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
    """A copy, some of its elements moved, others in each step, in other chunks."""
    copy = {name: tensor.clone() for name, tensor in state.items()}
    copy["sparse"].view(torch.int16)[step * 400_000 :: 97] += 1
    copy["dense"] *= 1.0001
    return copy


def applied(folder: Path, deltas: Sequence[Path]) -> Path:
    """What comes of the first checkpoint when the deltas are applied one after the other."""
    at = folder / "0"
    for number, delta in enumerate(deltas):
        ckpt.apply(at, delta, folder / f"applied-{number}")
        at = folder / f"applied-{number}"
    return at
