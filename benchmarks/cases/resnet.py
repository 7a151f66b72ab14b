"""A residual network of 18 layers, as He et al. 2015 (arXiv:1512.03385) draw it, with statistics as training leaves
them.

The sizes are those of ImageNet: images (N, 3, 224, 224) to logits (N, 1000), 11.7 million weights. The weights are
random, which takes as long as trained ones; the running statistics differ from (0, 1), so that folding them has work to
do.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 1000
IMAGE = (3, 224, 224)


class Block(nn.Module):
    """Two 3 × 3 convolutions beside their input, which is projected where its shape differs."""

    def __init__(self, inward: int, outward: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outward)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outward)
        self.project = nn.Sequential()
        if inward != outward:
            self.project = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride=stride, bias=False), nn.BatchNorm2d(outward)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, inward, H, W) to (N, outward, H / stride, W / stride)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.project(x))


class ResNet18(nn.Module):
    """A stem, four stages of two blocks, the mean over places, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    Block(inward, outward, stride=1 if inward == outward else 2), Block(outward, outward, stride=1)
                )
                for inward, outward in pairwise(widths)
            )
        )
        self.head = nn.Linear(512, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Logits, shape (N, 1000)."""
        x = self.stages(functional.max_pool2d(self.stem(image), 3, stride=2, padding=1))
        logits: Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def resnet18(seed: int) -> nn.Module:
    """In evaluation mode, with means about 0 and variances from 0.5 to 2."""
    torch.manual_seed(seed)
    model = ResNet18().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model
