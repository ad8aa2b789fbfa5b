"""Do what FLATOUT_COMPRESS asks for, and report it in `compression-<host>-<pid>.json` in the recording.

FLATOUT_COMPRESS: {"variant": "int8-dynamic", "skip": ["head"], "save": "/folder/weights.pt"}. The variant `none`
changes nothing, so that the unchanged model is reported in the same way. `save`: write the model's weights there.
`record`: write the ranges of its layers there, see `int8_static`. `sensitivity`: write there what each layer alone
changes, see `sensitivity`, and change nothing. An error of a variant is the outcome "not applied",
and the script continues with its own model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.first_model import FirstCall, FirstModel
from flatout.inside.compression.int8_static import record_ranges
from flatout.inside.compression.layers import num_bytes
from flatout.inside.compression.memory_peak import MemoryPeak, wait_for
from flatout.inside.compression.sensitivity import measure_sensitivity
from flatout.inside.compression.variants import NEED_CALL, OPTIONS, compress
from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.log import LOG
from flatout.inside.protocol import File, Variable, partial_name, process_name
from flatout.secrets import masked_text, open_private

SCHEMA, VERSION = "flatout/compression-report", 1
UNCHANGED = "none"


class CompressionReport:
    """What was done to the model of this process; written when it was done, and again at the end."""

    def __init__(self, folder: Path | None, variant: str) -> None:
        self._folder = folder
        self._peak: MemoryPeak | None = None
        self.content: dict[str, Any] = {
            "schema": SCHEMA,
            "version": VERSION,
            "variant": variant,
            "applied": False,
            "reason": "no model was called without gradients or in evaluation mode",
            "names": [],
            "num_modules": 0,
            "bytes_before": None,
            "bytes_after": None,
            "convert_s": None,
            "memory_bytes": None,
            "memory_kind": None,
            "device": None,
            "notes": [],
        }

    def write(self) -> None:
        if self._folder is None:
            return
        path = self._folder / File.COMPRESSION.of(process_name(os.uname().nodename, os.getpid()))
        partial = path.with_name(partial_name(path.name))
        try:
            with open_private(partial, "w", encoding="utf-8") as file:
                file.write(masked_text(json.dumps(self.content)))
            partial.replace(path)
        except OSError:
            LOG.error("the report of the compression")

    def begin_peak(self) -> None:
        """Begin to measure memory, without the copies of the conversion."""
        self._peak = MemoryPeak(self.content["device"])

    def write_end(self) -> None:
        """Add the most memory that was in use since the model was changed."""
        if self._peak is None:
            return
        self.content["memory_bytes"] = self._peak.num_bytes()
        self.content["memory_kind"] = self._peak.kind
        self.write()


def install_compression(
    recording: Path | None, environment: Mapping[str, str] = os.environ
) -> Callable[[], None] | None:
    """Install what the environment asks for; return what removes it, None if nothing was asked."""
    text = environment.get(Variable.COMPRESS)
    if not text:
        return None
    asked = json.loads(text)
    folder = recording
    if folder is None and environment.get(Variable.REPORTS):
        folder = LOG.folder = Path(environment[Variable.REPORTS])
    report = CompressionReport(folder, str(asked["variant"]))

    def found(model: nn.Module, call: FirstCall) -> None:
        try:
            change(model, call, asked, report)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("compression")
        report.write()
        EXIT_HANDLERS.at_exit(report.write_end)

    return FirstModel(found).install()


def change(model: nn.Module, call: FirstCall, asked: Mapping[str, Any], report: CompressionReport) -> None:
    """Apply the variant to the model, and note in the report what was done."""
    content = report.content
    content["num_modules"] = sum(_has_weights(module) for module in model.modules())
    content["bytes_before"] = num_bytes(model)
    content["device"] = _device(model)
    wait_for(content["device"])
    began_s = time.perf_counter()
    try:
        with torch.no_grad():
            changed = _changed(model, call, asked)
        wait_for(content["device"])
    except NotAppliedError as error:
        content["reason"] = str(error)
        return
    except Exception as error:  # noqa: BLE001 - the script continues; what was tried is not applied
        content["reason"] = f"{type(error).__name__}: {error}".splitlines()[0]
        LOG.error("compression")
        return
    content["convert_s"] = time.perf_counter() - began_s
    content["applied"], content["reason"] = True, None
    content["names"], content["notes"] = list(changed.names), list(changed.notes)
    content["bytes_after"] = changed.stored_bytes if changed.stored_bytes is not None else num_bytes(model)
    if asked.get("save") and asked["variant"] not in NEED_CALL:
        torch.save(model.state_dict(), asked["save"])
    report.begin_peak()


def _changed(model: nn.Module, call: FirstCall, asked: Mapping[str, Any]) -> Changed:
    """Apply the variant. A calibration changes nothing, and writes its ranges when the process ends."""
    if asked["variant"] == UNCHANGED:
        if asked.get("record"):
            EXIT_HANDLERS.at_exit(record_ranges(model, asked["record"]))
        return Changed(())
    if asked.get("sensitivity"):
        return measure_sensitivity(
            model, call, partial(compress, variant=asked["variant"], **_options(asked, call)), asked["sensitivity"]
        )
    return compress(model, asked["variant"], asked.get("skip", ()), **_options(asked, call))


def _options(asked: Mapping[str, Any], call: FirstCall) -> dict[str, Any]:
    options = {name: asked[name] for name in OPTIONS.get(asked["variant"], ()) if name in asked}
    if asked["variant"] in NEED_CALL:
        options["call"] = call
    return options


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _device(model: nn.Module) -> str:
    parameter = next(model.parameters(), None)
    return "cpu" if parameter is None else parameter.device.type
