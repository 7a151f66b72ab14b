"""Small networks of the shapes that people deploy, written plainly: nothing in them was made for this compiler."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_norm(inside: int, outside: int, kernel: int = 3, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and norm, as most image networks pair them."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside))


class Residual(nn.Module):
    """A basic block: two convolutions around an identity or a projection."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(inside, outside, stride=stride), conv_norm(outside, outside)
        self.skip = nn.Identity() if stride == 1 else conv_norm(inside, outside, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.skip(x) + self.second(functional.relu(self.first(x), inplace=True)), inplace=True)


def residual() -> nn.Module:
    """The layers of ResNet-18 at an eighth of its width: 20 convolutions, each with a norm."""
    stages: list[nn.Module] = [conv_norm(3, 8, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 8
    for outside, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        stages.append(Residual(inside, outside, stride))
        inside = outside
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Inverted(nn.Module):
    """Widen, filter each channel by itself, narrow; as in MobileNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = channels * 4
        self.widen, self.narrow = conv_norm(channels, wide, 1), conv_norm(wide, channels, 1)
        self.filter = conv_norm(wide, wide, groups=wide)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.hardswish(self.filter(functional.relu6(self.widen(x))))
        return x + self.narrow(y)


def depthwise() -> nn.Module:
    """Three inverted blocks."""
    return nn.Sequential(conv_norm(3, 8, stride=2), nn.Hardswish(), *(Inverted(8) for _ in range(3)))


class Dense(nn.Module):
    """Norm, activation, convolution, and everything before beside it; as in DenseNet."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inside), nn.Conv2d(inside, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(y)))], 1)


def dense() -> nn.Module:
    """Three dense layers."""
    return nn.Sequential(conv_norm(3, 8), *(Dense(8 + 4 * index, 4) for index in range(3)), nn.BatchNorm2d(20))


class Hourglass(nn.Module):
    """Down, up by a transposed convolution, and across; as in U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.across, self.down = conv_norm(3, 8), conv_norm(8, 16, stride=2)
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 2, stride=2), nn.BatchNorm2d(8))
        self.last = nn.Sequential(conv_norm(16, 8), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept = functional.relu(self.across(x))
        return self.last(torch.cat([kept, functional.relu(self.up(functional.relu(self.down(kept))))], 1))


def audio() -> nn.Module:
    """One axis: weight-normalised and batch-normalised convolutions over samples."""
    normal = nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        normal(nn.Conv1d(1, 8, 9, 4, 4)),
        nn.LeakyReLU(0.1),
        normal(nn.ConvTranspose1d(8, 8, 4, 2, 1)),
        nn.BatchNorm1d(8),
        nn.ReLU(inplace=True),
        nn.Conv1d(8, 8, 3, padding=2, dilation=2, bias=False),
        nn.BatchNorm1d(8),
        nn.Tanh(),
        nn.Conv1d(8, 1, 1),
    )


class Attention(nn.Module):
    """Attention written out, causal or not."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.dropout = nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = self.dropout(scores.softmax(-1))
        return self.mix((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Norm, attention, norm, feed-forward, each around an identity."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, 2, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.wide(self.norm2(x))


class Vision(nn.Module):
    """Patches, a token for the class, places, blocks; as in ViT."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 10, 16))
        self.blocks = nn.Sequential(*(Block(16, causal=False) for _ in range(2)))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.places
        return self.head(self.blocks(tokens)[:, 0])


class Decoder(nn.Module):
    """Tokens, places, causal blocks, and the table of tokens again as the head; as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.blocks = nn.Sequential(*(Block(16, causal=True) for _ in range(2)))
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.norm(self.blocks(x)) @ self.words.weight.t()


class Mixer(nn.Module):
    """Feed-forward over patches, then over channels; as in MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm1, self.norm2 = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16), nn.LayerNorm(16)
        self.over_patches = nn.Sequential(nn.Linear(9, 18), nn.GELU(), nn.Linear(18, 9))
        self.over_channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + self.over_patches(self.norm1(y).transpose(1, 2)).transpose(1, 2)
        return self.head((y + self.over_channels(self.norm2(y))).mean(1))
