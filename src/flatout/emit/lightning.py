"""Write keywords for Lightning's `Trainer` and `DDPStrategy`, as Python."""

from __future__ import annotations

from typing import Any

from flatout.emit.heading import commented
from flatout.emit.settings import Setter, Settings, settings
from flatout.records.change import Change
from flatout.records.tuning import Emitted, Tuning


def _autocast(change: Change, values: Settings) -> str | None:
    del change
    values.setdefault("trainer", {})["precision"] = "bf16-mixed"
    return None


def _benchmark(change: Change, values: Settings) -> str | None:
    del change
    values.setdefault("trainer", {})["benchmark"] = True
    return None


def _no_sync(change: Change, values: Settings) -> str:
    values.setdefault("trainer", {})["accumulate_grad_batches"] = int(change.value)
    return "with automatic optimization Lightning omits the early reductions itself"


def _ddp(change: Change, values: Settings) -> str | None:
    assert change.patch is not None
    values.setdefault("strategy", {}).update(change.patch.parameters)
    return None


def _hook(change: Change, values: Settings) -> str | None:
    if change.value not in ("bf16", "fp16"):
        return "pass DDPStrategy your own ddp_comm_hook and ddp_comm_state"
    values.setdefault("strategy", {})["ddp_comm_hook"] = f"default_hooks.{change.value}_compress_hook"
    return None


def _loader(change: Change, values: Settings) -> str:
    del values
    assert change.patch is not None
    words = ", ".join(f"{name}={value!r}" for name, value in change.patch.parameters.items())
    return f"in your train_dataloader(): DataLoader(..., {words})"


_SETTERS: dict[str, Setter] = {
    "autocast": _autocast,
    "cudnn-benchmark": _benchmark,
    "ddp-no-sync": _no_sync,
    "ddp-bucket": _ddp,
    "ddp-bucket-view": _ddp,
    "ddp-static-graph": _ddp,
    "ddp-compression": _hook,
    "dataloader-workers": _loader,
    "dataloader-prefetch": _loader,
    "dataloader-pin-memory": _loader,
    "dataloader-persistent-workers": _loader,
    "dataloader-fork-server": _loader,
}


def emit(tuning: Tuning) -> Emitted:
    values, notes = settings(tuning, _SETTERS, "Lightning")
    strategy: dict[str, Any] = values.get("strategy", {})
    hook = strategy.pop("ddp_comm_hook", None)
    words = [f"{name}={value!r}" for name, value in strategy.items()]
    words += [f"ddp_comm_hook={hook}"] if hook else []
    lines = ["import lightning"]
    if words:
        lines.append("from lightning.pytorch.strategies import DDPStrategy")
    if hook:
        lines.append("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks")
    keywords = [f"{name}={value!r}" for name, value in values.get("trainer", {}).items()]
    keywords += [f"strategy=DDPStrategy({', '.join(words)})"] if words else []
    body = "".join(f"        {keyword},\n" for keyword in keywords)
    lines += ["", "", "def make_trainer(**yours):", "    tuned = dict(", f"{body}    )"]
    lines += ["    return lightning.Trainer(**(yours | tuned))"]
    return Emitted(path="lightning_tuned.py", text=commented(tuning) + "\n".join(lines) + "\n", notes=notes)
