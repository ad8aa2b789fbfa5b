"""Apply the patches in FLATOUT_PATCHES to this process, right after torch was imported; see `change.patches` for names
and parameters.

Without a recording, FLATOUT_REPORTS names a folder for the reports and the log; without both, nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from flatout.inside.log import LOG
from flatout.inside.patches.report import REPORTS
from flatout.inside.protocol import Variable

# The module of each patch; it has a function of the patch's name. Patches are applied in this order, and later ones are
# outermost, so that the layers of one model are autocast(checkpoint(block)), all compiled together.
MODULES: Mapping[str, str] = {
    "bind_cores": "bind_cores",
    "num_threads": "num_threads",
    "loader_batch": "loader_batch",
    "dataloader": "dataloader",
    "balanced_batches": "balanced_batches",
    "work_share": "work_share",
    "non_blocking_copies": "copies",
    "optimizer_8bit": "other_optimizers",
    "optimizer": "optimizer",
    "lamb": "other_optimizers",
    "zero_grad_to_none": "optimizer",
    "cudnn_benchmark": "kernels",
    "tf32": "kernels",
    "keep_cache": "kernels",
    "fused_attention": "attention",
    "xformers_attention": "fused_kernels",
    "liger_kernels": "fused_kernels",
    "kv_cache": "kv_cache",
    "onnx_session": "onnx_session",
    "channels_last": "channels_last",
    "fp8": "low_precision",
    "activation_checkpointing": "activation_checkpointing",
    "autocast": "autocast",
    "compile": "compile",
    "onnx_export": "onnx_export",
    "nccl_options": "nccl_options",
    "ddp": "ddp",
    "ddp_hook": "ddp_hook",
    "ddp_no_sync": "ddp_no_sync",
    "local_sgd": "local_sgd",
    "fsdp2": "fsdp2",
    "fsdp2_no_sync": "fsdp2",
    "background_checkpoint": "background_checkpoint",
    "garbage_collection": "garbage_collection",
}


def apply_patches(recording: Path | None, environment: Mapping[str, str] = os.environ) -> None:
    text = environment.get(Variable.PATCHES)
    if not text:
        return
    if recording is None and environment.get(Variable.REPORTS):
        recording = LOG.folder = Path(environment[Variable.REPORTS])
    asked = read_patches(text)
    REPORTS.begin(recording)
    for name in sorted(asked, key=lambda name: list(MODULES).index(name) if name in MODULES else -1):
        report = REPORTS.add(name, asked[name])
        if name not in MODULES:
            report.note("this version has no such patch")
            continue
        try:
            module = import_module(f"{__package__}.{MODULES[name]}")
            getattr(module, name)(report, **asked[name])
        except Exception:  # noqa: BLE001 - the job runs without it
            report.failed("installing")


def read_patches(text: str) -> dict[str, dict[str, object]]:
    """Return the parameters by patch name, merged if a name occurs again. Raises ValueError for any other text."""
    found: dict[str, dict[str, object]] = {}
    for item in json.loads(text):
        found.setdefault(str(item["name"]), {}).update(item.get("parameters", {}))
    return found
