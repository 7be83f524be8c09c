"""What torch calls our element types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
}
NAMES: Final[Mapping[torch.dtype, str]] = {value: name for name, value in TORCH_DTYPES.items()}
