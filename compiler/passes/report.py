"""What a pass says about its work: each change, and each place where it refused to change, with a reason code."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a pattern that was found was left alone. Codes are stable: programs store them."""

    OTHER_USE = "other_use"  # the intermediate value is read elsewhere, too
    SHARED_WEIGHT = "shared_weight"  # the weight serves another operator, too
    WEIGHT_NOT_CONSTANT = "weight_not_constant"  # the weight or bias is computed, not stored
    BATCH_STATISTICS = "batch_statistics"  # the statistics are the batch's own: training mode, or none are stored
    STATISTICS_NOT_CONSTANT = "statistics_not_constant"  # statistics or affine parameters are computed, not stored
    UNSUPPORTED_PRODUCER = "unsupported_producer"  # what feeds the normalisation is no convolution or linear layer
    TRANSPOSED = "transposed"  # a transposed convolution; programs of before it was folded may hold this
    CHANNEL_AXIS = "channel_axis"  # the normalised axis is not the producer's output channel
    ALIAS = "alias"  # two outputs would come to share memory
    DTYPE_CHANGE = "dtype_change"  # the normalisation changes the element type


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A rewrite that was made: where, and what became of it."""

    site: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A rewrite that was not legal: where, and why."""

    site: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """Everything one pass did and refused, in graph order."""

    name: str
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
