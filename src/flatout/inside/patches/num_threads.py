"""Compute with another number of threads than the script sets by `torch.set_num_threads`."""

from __future__ import annotations

import sys
from functools import wraps

import torch

from flatout.inside.patches.report import Report

_LOADER = "torch.utils.data."  # its workers set one thread each, and keep it


def num_threads(report: Report, *, count: int) -> None:
    original = torch.set_num_threads

    @wraps(original)
    def set_num_threads(wanted: int) -> None:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith(_LOADER):
            original(wanted)
            return
        original(count)
        if wanted != count:
            report.did("overridden")

    original(count)
    torch.set_num_threads = set_num_threads
    report.did("processes", is_process_wide=True)
