"""Names of events in profiles of XLA: which are collectives, which wait for data, which wait for the device.

In: names as JAX, TensorFlow and XLA write them. Out: what they stand for, in the names that `attribute` knows. A name
is looked at once, never once per event.
"""

from __future__ import annotations

import math
import re

DATA_LOADING = "flatout:data_loading"
CHECKPOINT = "flatout:checkpoint"
SYNCHRONIZE = "flatout:synchronize"
COLLECTIVE = "xla:"

_COLLECTIVE = re.compile(
    r"^%?(all-reduce|all-gather|reduce-scatter|ragged-all-to-all|all-to-all|collective-permute|collective-broadcast"
    r"|send|recv)(?:-start|-done)?(?:[._]|\d|$)"
)
_OPERATION = {"ragged-all-to-all": "all_to_all", "collective-permute": "send_recv", "collective-broadcast": "broadcast"}
# Operators that run others, whose events are within theirs.
_CONTAINER = re.compile(r"^%?(?:while|call|conditional|async-(?:start|update|done)|command_buffer)(?:[._]|\d|$)")
# How a TPU names an operator: `%copy-done.2 = f32[8]{0} copy-done(...)`, the whole instruction.
_INSTRUCTION = re.compile(r"^%(?P<name>\S+) = (?P<rest>.*)$", re.DOTALL)
# Operators that wait for the copy engines of a TPU.
_DEVICE_COPY = re.compile(r"^(?:copy|slice|dynamic-slice|dynamic-update-slice)-(?:start|done)(?:[._]|\d|$)")
_SHAPE = re.compile(r"^(?P<type>[a-z][a-z0-9]{1,15})\[(?P<sizes>(?:\d{1,12},?){0,12})\]")
_TYPE_BITS = {"pred": 8, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64} | {
    "f8e4m3fn": 8,
    "f8e5m2": 8,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "s4": 4,
    "u4": 4,
    "c64": 64,
}
_HOST_MEMORY = "S(5)"  # the memory space of the host in a layout: XLA's Layout::kHostMemorySpace
# Python calls, as JAX's tracer names them: `$train.py:12 batches`, `$builtins next`, `$<unknown> __next__`.
_PYTHON = re.compile(r"^\$(?P<file>\S+) (?P<function>.+)$")
_NEXT = re.compile(r"^(?:__next__|next)$")
_BATCH_FUNCTION = re.compile(
    r"^_*(?:get|next|load|make|fetch|read|create|wait_for)?_*(?:next_)?(?:host_|train_|local_|input_)?"
    r"(?:batch(?:es)?|data|dataset|input|loader|data_?loader)(?:_(?:iter(?:ator)?|generator|gen|pipeline|fn))?$",
    re.IGNORECASE,
)
# Annotations of users, of tf.data and of grain.
_DATA_ANNOTATION = re.compile(
    r"^Iterator(?:::|GetNext)|^(?:data|input|batch)[ _-]?(?:load|loading|loader|fetch|wait|next|iterator|pipeline)\b"
    r"|^(?:load|fetch|get|next|wait for)[ _-]?(?:data|batch|input)\b|PyGrain|grain.*__next__",
    re.IGNORECASE,
)
_SAVES = re.compile(r"^_*(?:save|write|dump)_?(?:model|training|train)?_?(?:checkpoint|ckpt|state|args|pytree)?s?$")
_CHECKPOINT_FILE = re.compile(r"checkpoint|orbax|ckpt|pytree_handler", re.IGNORECASE)
_CHECKPOINT_ANNOTATION = re.compile(r"^(?:save|write)[ _-]?(?:checkpoint|ckpt)|^checkpoint(?:ing)?$", re.IGNORECASE)
_WAITS = re.compile(r"^(?:block_until_ready|_single_device_array_to_np_array_did_copy|_value|__float__|__int__|item)$")
_RUNTIME = re.compile(r"^(?:cu|cuda|hip)[A-Z]\w+(?: \(.*\))?$")
# What XLA and TensorFlow record of themselves on their threads.
_INTERNAL = re.compile(r"^(?:ThreadpoolListener|ThunkExecutor|end: |Wait for|BufferSequencing|Semaphore|TraceContext)")


def instruction_name(name: str) -> str:
    """Return the name of the operator alone, where the whole instruction was recorded."""
    match = _INSTRUCTION.match(name)
    return match["name"] if match is not None else name


def collective(name: str) -> str | None:
    """Return the collective that an operator of XLA performs: `all_reduce`, ...; None for any other."""
    match = _COLLECTIVE.match(instruction_name(name))
    if match is None:
        return None
    return _OPERATION.get(match[1], match[1].replace("-", "_"))


def is_end_of_collective(name: str) -> bool:
    """Whether an operator waits for a collective that another one started."""
    return "-done" in instruction_name(name) and collective(name) is not None


def is_container(name: str) -> bool:
    """Whether an operator runs others, such as a loop."""
    return _CONTAINER.match(instruction_name(name)) is not None


def is_device_copy(name: str) -> bool:
    """Whether an operator of a TPU starts a copy or waits for one."""
    return _DEVICE_COPY.match(instruction_name(name)) is not None


def device_copy_name(name: str) -> str:
    """Return `Memcpy` with the direction of a TPU's copy, by the memory spaces of its result and of its operand."""
    match = _INSTRUCTION.match(name)
    if match is None or "-done" not in match["name"]:
        return "Memcpy"
    result, _, operands = match["rest"].partition("copy-done(")
    if _HOST_MEMORY in result:
        return "Memcpy DtoH"
    return "Memcpy HtoD" if _HOST_MEMORY in operands else "Memcpy DtoD"


def is_runtime_call(name: str) -> bool:
    """Whether an event is a call of the runtime of CUDA or HIP."""
    return _RUNTIME.match(name) is not None


def device_copy_bytes(name: str) -> int | None:
    """Return the size of what an instruction copies, by the shape of its result; None if it is not recorded."""
    match = _INSTRUCTION.match(name)
    shape = _SHAPE.match(match["rest"]) if match is not None else None
    if shape is None or shape["type"] not in _TYPE_BITS:
        return None
    sizes = [int(size) for size in shape["sizes"].split(",") if size]
    return math.prod(sizes) * _TYPE_BITS[shape["type"]] // 8


def call_name(name: str) -> str:
    """Return the name of a launching call. XLA names most of them after the kernel or the copy that they launch."""
    if is_runtime_call(name):
        return name
    return f"cuMemcpyAsync ({name})" if name.startswith(("Memcpy", "Memset")) else f"cuLaunchKernel ({name})"


def is_python(name: str) -> bool:
    return name.startswith("$")


def is_internal(name: str) -> bool:
    return _INTERNAL.match(name) is not None


def is_next(name: str) -> bool:
    """Whether a Python call asks an iterator for its next value."""
    match = _PYTHON.match(name)
    return match is not None and _NEXT.match(match["function"]) is not None


def is_of_context_manager(name: str) -> bool:
    """Whether a Python call enters or leaves a context manager, which asks a generator for its next value too."""
    return name.startswith("$contextlib.py")


def meaning(name: str) -> str | None:
    """Return the name under which `attribute` knows a host event: one of the constants above; None for any other."""
    match = _PYTHON.match(name)
    if match is None:
        if _DATA_ANNOTATION.search(name):
            return DATA_LOADING
        return CHECKPOINT if _CHECKPOINT_ANNOTATION.search(name) else None
    function = match["function"]
    if _NEXT.match(function) or _BATCH_FUNCTION.match(function):
        return DATA_LOADING
    if _SAVES.match(function) and (_CHECKPOINT_FILE.search(match["file"]) or "_" in function):
        return CHECKPOINT
    return SYNCHRONIZE if _WAITS.match(function) else None
