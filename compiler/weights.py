"""Checkpoint tensors out of safetensors files, for the command line: those that are asked for, and nothing else.

A checkpoint of this project keeps its weights in such files. Whether they are what was saved is proved where
checkpoints are known (``python -m ckpt verify``); here they are bytes with names.
"""

from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from compiler.errors import WeightsError


def read_weights(path: str | Path, names: Collection[str]) -> dict[str, Tensor]:
    """Tensors by name.

    Args:
        path: A safetensors file, or a folder whose safetensors files each hold some tensors.
        names: Which; those that no file has are left out.

    Raises:
        WeightsError: There is no such file, or one is damaged.
    """
    path = Path(path)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise WeightsError(path=path, found="no safetensors file")
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                found |= {name: opened.get_tensor(name) for name in opened.keys() if name in names}  # noqa: SIM118
        except SafetensorError as error:
            raise WeightsError(path=file, found=f"a damaged file ({error})") from error
    return found
