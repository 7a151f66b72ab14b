"""A recipe of one's own on top of a shipped one: MiniLM cut to its first layer, which is a quarter of the work."""

from torch import nn

from recipes import Plan, minilm
from recipes.minilm import DYNAMIC, SCHEMA, attachments, inputs, judge, rows, train

__all__ = ["DYNAMIC", "GATE", "NAME", "PLANS", "SCHEMA", "attachments", "build", "inputs", "judge", "rows", "train"]

NAME = "texts"
PLANS = {
    **minilm.PLANS,
    "full": Plan(steps=40, learning_rate=1e-3, batch_rows=32, trainable=("encoder.layers.0.", "head.")),
}
GATE = {"accuracy": 0.5}


def build() -> nn.Module:
    model = minilm.Classifier()
    model.encoder.layers = model.encoder.layers[:1]
    return model
