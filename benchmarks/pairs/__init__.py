"""Pairs of checkpoints to make deltas of: a base, and what training made of it.

    python -m benchmarks.pairs .treering/pairs

``sources`` is the table: a *source* is one training, or one draw of random numbers, and gives one or more pairs. The
same libraries on the same kind of processor give the same bits. ``make`` writes those pairs that are not there yet, so
nothing is trained twice. ``mnist``, ``minilm`` and ``synthetic`` say how; ``changes`` tells how two checkpoints
differ, element by element.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final, Literal, cast

from benchmarks.errors import UnknownPairError

HALVES: Final = ("base", "target")
MIB = 1 << 20

Half = tuple[str, Literal["base", "target"], object]  # of which pair, which half, its state: saved before more is asked
Maker = Callable[..., Iterator[Half]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What makes some pairs.

    Attributes:
        maker: "module:function" in this package; a ``Maker``.
        pairs: The names of the pairs that it gives.
        parameters: Its keyword arguments.
    """

    maker: str
    pairs: tuple[str, ...]
    parameters: dict[str, str | int | float] = field(default_factory=dict)

    def halves(self) -> Iterator[Half]:
        """Train or draw, and give each half once it is there."""
        module, _, function = self.maker.partition(":")
        maker = cast(Maker, getattr(import_module(f"benchmarks.pairs.{module}"), function))
        return maker(**self.parameters)


def sources(*, is_quick: bool, synthetic_mib: int) -> tuple[Source, ...]:
    """The table.

    Args:
        is_quick: MiniLM is cut to one layer and 512 words, and MNIST is trained for a tenth of its steps.
        synthetic_mib: Size of each pair of random weights.
    """
    size = {"layers": 1, "words": 512} if is_quick else {"layers": 6, "words": 30_522}
    return (
        Source(maker="mnist:digits", pairs=("mnist-head", "mnist-full"), parameters={"share": 0.1 if is_quick else 1}),
        *(
            Source(
                maker="minilm:finetuned",
                pairs=tuple(f"minilm-{kind}-lr{rate}-steps{steps}" for steps in (1, 10, 100)),
                parameters={"kind": kind, "rate": rate, **size},
            )
            for kind in ("fp32", "bf16")
            for rate in ("1e-6", "1e-5", "1e-4")
        ),
        Source(maker="minilm:lora", pairs=("minilm-lora-fp32", "minilm-lora-bf16"), parameters={**size}),
        Source(maker="minilm:rows", pairs=("minilm-rows-fp32", "minilm-rows-bf16"), parameters={**size}),
        Source(maker="minilm:grown", pairs=("minilm-appended-fp32", "minilm-inserted-fp32"), parameters={**size}),
        Source(maker="minilm:training_state", pairs=("minilm-state-fp32",), parameters={**size}),
        *(
            Source(
                maker="synthetic:stepped_weights",
                pairs=(f"synthetic-bf16-{percent}%",),
                parameters={"percent": percent, "size_bytes": synthetic_mib * MIB},
            )
            for percent in (0.1, 1, 10, 70)
        ),
    )


def make(
    sources: Collection[Source], out: Path, *, names: Collection[str], say: Callable[[str], None] = lambda name: None
) -> None:
    """Write the pairs of those names that are not whole yet, as checkpoints ``out/NAME/base`` and ``out/NAME/target``.

    Args:
        sources: The table.
        out: A folder.
        names: Of pairs.
        say: Hears the name of each pair once it is there.

    Raises:
        UnknownPairError: No source gives a pair of that name.
    """
    known = [name for source in sources for name in source.pairs]
    for name in names:
        if name not in known:
            raise UnknownPairError(name, known=known)
    for source in sources:
        wanted = [name for name in source.pairs if name in names]
        _make(source, out, missing={name for name in wanted if not is_whole(out / name)})
        for name in wanted:
            say(name)


def is_whole(folder: Path) -> bool:
    """Whether both halves are there; each appears whole or not at all."""
    return all((folder / half).exists() for half in HALVES)


def _make(source: Source, out: Path, *, missing: set[str]) -> None:
    if not missing:
        return
    import ckpt  # with torch, which planning does without

    for name, half, state in source.halves():
        if name in missing:
            ckpt.save(state, out / name / half, overwrite=True)
            missing -= {name} if half == "target" else set()
        if not missing:
            return
