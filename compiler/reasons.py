"""Why something that was found was left alone: the codes of refusals. They are stable, since programs store them."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a pattern that was found was left alone, or a model was not captured at all (the last)."""

    OTHER_USE = "other_use"  # the intermediate value is read elsewhere, too
    SHARED_WEIGHT = "shared_weight"  # the weight serves another operator, too
    WEIGHT_NOT_CONSTANT = "weight_not_constant"  # the weight or bias is computed, not stored
    BATCH_STATISTICS = "batch_statistics"  # the statistics are the batch's own: training mode, or none are stored
    STATISTICS_NOT_CONSTANT = "statistics_not_constant"  # statistics or affine parameters are computed, not stored
    MUTATION = "mutation"  # the model writes in place to the value in between
    UNSUPPORTED_PRODUCER = "unsupported_producer"  # what feeds the normalisation is no convolution or linear layer
    UNSUPPORTED_CONSUMER = "unsupported_consumer"  # what reads the normalisation is no convolution or linear layer
    TRANSPOSED = "transposed"  # a transposed convolution, whose borders see fewer taps than its middle
    PADDING = "padding"  # the layer pads with zeros that were never normalised
    CHANNEL_AXIS = "channel_axis"  # the normalised axis is not the layer's channel
    ALIAS = "alias"  # two outputs, or an output and a constant, would come to share memory
    DTYPE_CHANGE = "dtype_change"  # the element type changes in between
    UNSUPPORTED_DTYPE = "unsupported_dtype"  # the result would be rounded to this element type where it was not before
    NO_FORMULA = "no_formula"  # no operation of formulas computes this
    TOO_LARGE = "too_large"  # the constant would take much more memory than what it is computed from
    SHAPE = "shape"  # the operands have shapes that the replacement does not take
    SCALE = "scale"  # scores are scaled by a tensor, or by a number that is not positive
    MASK_VALUE = "mask_value"  # scores are replaced by a number that adding a mask would not give
    CONTROL_FLOW = "control_flow"  # which operators run depends on values: no program is made
