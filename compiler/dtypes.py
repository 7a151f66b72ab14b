"""The frozen table of element types a program may hold: name in text, torch's own object.

The protobuf's ``DType`` holds the same names. What is not here cannot be in a program.
"""

from typing import Final

import torch

BY_NAME: Final[dict[str, torch.dtype]] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NAME: Final[dict[torch.dtype, str]] = {dtype: name for name, dtype in BY_NAME.items()}
