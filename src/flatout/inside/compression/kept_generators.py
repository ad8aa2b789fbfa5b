"""Leave torch's random generators as they are while a model is changed.

Making a layer draws its first weights. A script that draws samples or tokens afterwards would draw others than with the
untouched model, and its results could not be compared one by one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def kept_generators() -> AbstractContextManager[Any]:
    """Restore the generators of the CPU, and of the GPUs if the script uses them."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    kept: AbstractContextManager[Any] = torch.random.fork_rng(devices=range(num_gpus), device_type="cuda")
    return kept
