"""Models and programs that the compiler's tests share. One AOTInductor build (about 15 s) serves them all."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randomise(model: nn.Module, seed: int) -> nn.Module:
    """Statistics and gains as training leaves them at worst: far from (0, 1), some gains negative and one zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None:
                module.running_mean.normal_(0.0, 2.0, generator=generator)
                module.running_var.copy_(10 ** (torch.rand(module.num_features, generator=generator) * 4 - 2))
                if module.affine:
                    module.weight.normal_(0.0, 1.0, generator=generator)
                    module.weight[0] = 0.0
                    module.weight[1] = -1.5
    return model.eval()


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(x + self.bn2(self.conv2(y)))


class ResidualNet(nn.Module):
    """Five Conv-BN pairs, dropout, a non-persistent buffer and a constant lifted from the code."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, stride=2), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        self.block1 = ResidualBlock(channels)
        self.block2 = ResidualBlock(channels)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(channels, 10)
        self.register_buffer("temperature", torch.tensor([0.5]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.stem(x)))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.head(self.dropout(x)) * self.temperature + torch.tensor(0.25)


@pytest.fixture(scope="session")
def residual_net() -> Callable[..., nn.Module]:
    """seed → a residual CNN with eight channels in evaluation mode."""
    return lambda seed=0: randomise(ResidualNet(), seed)


@pytest.fixture(scope="session")
def randomised() -> Callable[..., nn.Module]:
    """(model, seed) → the model with wild statistics, in evaluation mode."""
    return lambda model, seed=0: randomise(model, seed)


@pytest.fixture(scope="session")
def images() -> Tensor:
    return torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def eager_program(residual_net: Callable[..., nn.Module], images: Tensor) -> compiler.Program:
    dynamic = {"x": {0: compiler.Dim(name="batch", max=16)}}
    return compiler.compile(residual_net(), (images[:1],), dynamic=dynamic, backend="eager")


@pytest.fixture(scope="session")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that ``aoti_program`` was built and verified in."""
    folder = tmp_path_factory.mktemp("odd") / "Größe & Maß, 年輪"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def aoti_program(residual_net: Callable[..., nn.Module], images: Tensor, odd_folder: Path) -> compiler.Program:
    dynamic = {"x": {0: compiler.Dim(name="batch", max=16)}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(odd_folder))
        return compiler.compile(residual_net(), (images[:1],), dynamic=dynamic, backend="aoti")
