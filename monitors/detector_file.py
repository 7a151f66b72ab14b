"""A detector in a checkpoint, and back.

The forest's arrays are tensors and the rest plain values, so a detector is saved, verified, diffed and signed like any
model, and loading it runs no code from the file. What is read is rebuilt through the constructors, which check it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ckpt
from monitors.calibration import Limit
from monitors.detector import Detector
from monitors.errors import InvalidDetectorError
from monitors.forest import Forest
from monitors.tolerance import FIGURES

FORMAT = 1
_ARRAYS = ("roots", "feature", "threshold", "left", "right", "path")


def save_detector(detector: Detector, path: str | Path) -> str:
    """Write the detector as a checkpoint, in place of an older one there, and return its root."""
    forest = detector.forest
    state = {
        "format": FORMAT,
        "model": detector.model,
        "figures": list(detector.figures),
        "centre": torch.from_numpy(detector.centre),
        "unit": torch.from_numpy(detector.unit),
        "class_shares": dict(detector.class_shares),
        "forest": {name: torch.from_numpy(getattr(forest, name)) for name in _ARRAYS}
        | {"sample_rows": forest.sample_rows, "features": forest.features},
        "limits": {name: [limit.usual, limit.most] for name, limit in detector.limits.items()},
        "budget": detector.budget,
        "learned_roots": list(detector.learned_roots),
    }
    return ckpt.save(state, path, metadata={"kind": "detector", "model": detector.model}, overwrite=True).root


def load_detector(path: str | Path) -> Detector:
    """Read a detector.

    Raises:
        InvalidDetectorError: The checkpoint is whole, and is no detector or contradicts itself.
        ckpt.CheckpointError: The checkpoint is damaged or missing.
    """
    state = ckpt.load(path, verify="sha256")
    try:
        return _detector(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidDetectorError(str(path), found=f"{type(error).__name__}: {error}") from error


def _detector(state: Mapping[str, Any]) -> Detector:
    if state["format"] != FORMAT:
        raise ValueError(f"format {state['format']}, this program reads format {FORMAT}")
    figures = tuple(str(name) for name in state["figures"])
    unknown = set(figures) - FIGURES.keys()
    if unknown or not figures:
        raise ValueError(f"figures {figures}, known are {', '.join(FIGURES)}")
    forest = Forest(
        **{name: _array(state["forest"][name]) for name in _ARRAYS},
        sample_rows=int(state["forest"]["sample_rows"]),
        features=int(state["forest"]["features"]),
    )
    centre, unit = _array(state["centre"]), _array(state["unit"])
    if not centre.shape == unit.shape == (len(figures),) or forest.features != len(figures):
        raise ValueError(f"{len(figures)} figures, {len(centre)} centres, a forest of {forest.features} features")
    if not (np.isfinite(centre).all() and (unit > 0).all()):
        raise ValueError("a centre is not finite, or a unit is not above 0")
    return Detector(
        model=str(state["model"]),
        figures=figures,
        centre=centre,
        unit=unit,
        class_shares={str(kind): float(share) for kind, share in state["class_shares"].items()},
        forest=forest,
        limits={str(name): Limit(usual=usual, most=most) for name, (usual, most) in state["limits"].items()},
        budget=float(state["budget"]),
        learned_roots=tuple(str(root) for root in state["learned_roots"]),
    )


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.numpy()
    return array
