"""What the Xids of a node call for.

In: the Xids of a kernel log, in their order. Out: an action per GPU, with its reason.

A job's own Xids (13, 31, 43), Xid 45, which only cleans up after others, and Xids without effect call for nothing,
however many there are. The severity of NVLink's Xids 144 to 150 is in their text and not in their number. Source of
the actions: https://docs.nvidia.com/deploy/xid-errors/ (catalogue of 2026).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.catalog.xids import has_no_effect, is_job_fault
from flatout.doctor.parse.kernel_log import GpuEvent
from flatout.records.watch import GpuAdvice, NodeAction

NVLINK = range(144, 151)
DOUBLE_BIT, REMAP_RECORDED = 48, 63
CONTAINED = 94
# Xids after which the GPU cannot be used again without a reboot or a replacement.
DRAINING = {64: "rows cannot be remapped", 79: "the GPU has fallen off the bus", 160: "a channel was retired"}
REPEATS = 3  # the same Xid on the same GPU, after which a reset no longer helps
_ORDER: tuple[NodeAction, ...] = ("none", "restart_job", "reset_gpu", "drain")
_NONFATAL, _FATAL = re.compile(r"non-?fatal", re.I), re.compile(r"\bfatal", re.I)


def advise(xids: Sequence[GpuEvent]) -> tuple[GpuAdvice, ...]:
    """Return the gravest action for each GPU that has Xids."""
    of_gpu: dict[str, list[GpuEvent]] = {}
    for event in xids:
        of_gpu.setdefault(event.address, []).append(event)
    return tuple(_advise_gpu(address, events) for address, events in of_gpu.items())


def _advise_gpu(address: str, events: Sequence[GpuEvent]) -> GpuAdvice:
    codes = [event.code for event in events]
    gravest: tuple[NodeAction, str, int] = ("none", "Xids of jobs, or without effect", codes[0])
    for event in events:
        action, reason = _of_event(event, codes)
        if _ORDER.index(action) > _ORDER.index(gravest[0]):
            gravest = action, reason, event.code
    action, reason, code = gravest
    return GpuAdvice(address=address, action=action, xid=code, num_xids=len(codes), reason=reason)


def _of_event(event: GpuEvent, codes: Sequence[int]) -> tuple[NodeAction, str]:
    code = event.code
    if code == REMAP_RECORDED and DOUBLE_BIT in codes:
        return "reset_gpu", "a row waits to be remapped after a double-bit error"
    if is_job_fault(code) or has_no_effect(code):
        return "none", "of a job, or without effect"
    if code in NVLINK:
        return _of_nvlink(event)
    if code in DRAINING:
        return "drain", DRAINING[code]
    if code == CONTAINED:
        return "restart_job", "the error is contained in one job"
    if codes.count(code) >= REPEATS:
        return "drain", f"the same Xid {codes.count(code)} times"
    return "reset_gpu", "an Xid that a job does not cause"


def _of_nvlink(event: GpuEvent) -> tuple[NodeAction, str]:
    if _NONFATAL.search(event.text):
        return "none", "NVLink reports it as nonfatal"
    if _FATAL.search(event.text):
        return "reset_gpu", "NVLink reports it as fatal"
    return "none", "the severity of this NVLink Xid is not in its text"
