"""Figures that recipes share."""

import torch
from torch import Tensor

from recipes.contract import Predict

BATCH_ROWS = 32  # compiled programs have a largest batch; every shipped one takes 32


def accuracy(predict: Predict, inputs: tuple[Tensor, ...], labels: Tensor) -> float:
    """The share of rows (0..1) whose largest logit is the label's."""
    right = 0
    for start in range(0, len(labels), BATCH_ROWS):
        chunk = slice(start, start + BATCH_ROWS)
        logits = predict(*(tensor[chunk] for tensor in inputs))
        right += int((torch.as_tensor(logits).argmax(dim=1) == labels[chunk]).sum())
    return right / len(labels)
