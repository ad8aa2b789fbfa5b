"""Find a rank's phase and collective, and whether it waits for others, from its heartbeat and its stack."""

from __future__ import annotations

import linecache
import re

from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.stacks import Stack

_DISTRIBUTED = re.compile(r"torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives|rendezvous)\.py$")
_WAITING_FUNCTIONS = {"synchronize", "wait", "_engine_run_backward"}
_COPIES = re.compile(r"\.(item|cpu|tolist|numpy)\(|\.to\(\s*[\"']cpu|synchronize\(")
_COMPILING = re.compile(r"torch/(_dynamo|_inductor|_functorch)/|/triton/")
_ASKING = re.compile(r"/(pdb|bdb|code|cmd)\.py$")  # a debugger waits for its user
_EVALUATING = re.compile(r"(^|_)(eval\w*|valid\w*|test|sample|generate)($|_)", re.I)
_SAVING = re.compile(r"(^|_)(save\w*|checkpoint\w*|dump|upload\w*|push\w*|export\w*|publish)($|_)", re.I)
# Waiting for another machine or another program: a download, an upload, a command.
_ELSEWHERE = re.compile(
    r"/(ssl|socket|subprocess)\.py$|/http/client\.py$|/urllib3/|/requests/|/botocore/|/fsspec/|/s3fs/"
)


def collective_of(stack: Stack | None) -> str | None:
    """Return the function of torch.distributed that the main thread is in."""
    if stack is None:
        return None
    names = [frame.function for frame in stack.frames if frame.file.endswith("distributed_c10d.py")]
    outer = [name for name in names if not name.startswith("_") and name != "wrapper"]
    if outer:
        return outer[-1]
    if any(frame.function == "_engine_run_backward" for frame in stack.frames[:3]):
        return "backward"
    return names[-1] if names else None


def phase_of(pulse: HeartbeatSample, stack: Stack | None) -> str:
    """Return the phase that the hooks have marked; if they marked none, derive it from the stack."""
    if stack is not None and any(_COMPILING.search(frame.file) for frame in stack.frames):
        return "compilation"
    if pulse.phase != "compute":
        return pulse.phase
    own = [frame.function for frame in stack.frames if frame.is_users] if stack is not None else []
    if any(_EVALUATING.search(name) for name in own):
        return "evaluation"
    if any(_SAVING.search(name) for name in own):
        return "checkpoint"
    if stack is not None and any(_ELSEWHERE.search(frame.file) for frame in stack.frames[:6]):
        return "network"
    return "compute"


def waits_for_others(pulse: HeartbeatSample, stack: Stack | None) -> bool:
    """Whether the rank waits for other ranks, as far as its stack shows."""
    if stack is None or not stack.frames or pulse.phase == "data":
        return False
    top = stack.frames[:4]
    if any(_DISTRIBUTED.search(frame.file) or frame.function in _WAITING_FUNCTIONS for frame in top):
        return True
    innermost = stack.frames[0]
    return pulse.has_gpu and _COPIES.search(linecache.getline(innermost.file, innermost.line)) is not None


def is_in_debugger(stack: Stack | None) -> bool:
    """Whether a debugger waits for its user."""
    return stack is not None and any(_ASKING.search(frame.file) for frame in stack.frames)
