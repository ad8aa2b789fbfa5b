"""Keys for a DeepSpeed configuration (JSON), to be merged into the user's own.

DeepSpeed reduces gradients itself, in place of DistributedDataParallel, so few changes carry over one to one.
"""

from __future__ import annotations

import json
from typing import Any

from flatout.emit.settings import Setter, settings
from flatout.records.change import Change
from flatout.records.tuning import Emitted, Tuning

MIB = 1 << 20
ELEMENT_BYTES = 4  # of a gradient in fp32


def _autocast(change: Change, found: dict[str, Any]) -> str:
    found["torch_autocast"] = {"enabled": True, "dtype": change.value}
    return "from DeepSpeed 0.17 on; `bf16.enabled` is another thing: it keeps the weights themselves in bf16"


def _bucket(change: Change, found: dict[str, Any]) -> str:
    elements = int(change.value) * MIB // ELEMENT_BYTES
    found["zero_optimization"] = {"reduce_bucket_size": elements}
    return f"with ZeRO stage 1 or higher, in elements: {change.value} MiB of fp32"


def _compression(change: Change, found: dict[str, Any]) -> str | None:
    if change.value != "bf16":
        return "DeepSpeed has no setting for it"
    found["communication_data_type"] = "bf16"
    return None


def _no_sync(change: Change, found: dict[str, Any]) -> str:
    found["gradient_accumulation_steps"] = int(change.value)
    return "DeepSpeed reduces at the end of accumulation by itself, with engine.backward() and engine.step()"


_SETTERS: dict[str, Setter] = {
    "autocast": _autocast,
    "ddp-bucket": _bucket,
    "ddp-compression": _compression,
    "ddp-no-sync": _no_sync,
}


def emit(tuning: Tuning) -> Emitted:
    found, notes = settings(tuning, _SETTERS, "DeepSpeed")
    return Emitted(path="deepspeed_tuned.json", text=json.dumps(found, indent=2) + "\n", notes=notes)
