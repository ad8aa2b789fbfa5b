"""Keys for a DeepSpeed configuration (JSON), to be merged into the user's own.

DeepSpeed reduces gradients itself, instead of DistributedDataParallel, so few changes can be translated directly.
"""

from __future__ import annotations

import json

from flatout.emit.settings import Setter, Settings, settings
from flatout.records.change import Change
from flatout.records.tuning import Emitted, Tuning

MIB = 1 << 20
ELEMENT_BYTES = 4  # bytes of a gradient element in fp32


def _autocast(change: Change, values: Settings) -> str:
    values["torch_autocast"] = {"enabled": True, "dtype": change.value}
    return "DeepSpeed 0.17 or later; `bf16.enabled` differs: it keeps the weights themselves in bf16"


def _bucket(change: Change, values: Settings) -> str:
    elements = int(change.value) * MIB // ELEMENT_BYTES
    values["zero_optimization"] = {"reduce_bucket_size": elements}
    return f"with ZeRO stage 1 or higher, in elements: {change.value} MiB of fp32"


def _compression(change: Change, values: Settings) -> str | None:
    if change.value not in ("bf16", "fp16"):
        return "DeepSpeed has no setting for it"
    values["communication_data_type"] = change.value
    return None


def _no_sync(change: Change, values: Settings) -> str:
    values["gradient_accumulation_steps"] = int(change.value)
    return "DeepSpeed reduces only at the end of accumulation, with engine.backward() and engine.step()"


_SETTERS: dict[str, Setter] = {
    "autocast": _autocast,
    "ddp-bucket": _bucket,
    "ddp-compression": _compression,
    "ddp-no-sync": _no_sync,
}


def emit(tuning: Tuning) -> Emitted:
    values, notes = settings(tuning, _SETTERS, "DeepSpeed")
    return Emitted(path="deepspeed_tuned.json", text=json.dumps(values, indent=2) + "\n", notes=notes)
