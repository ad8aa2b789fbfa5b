"""Apply `--fix PARAMETER=VALUE`: keep the layouts with the given values, or explain why there are none."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from flatout.errors import InputError, UsageError
from flatout.plan.inputs import RECOMPUTE, SCHEDULES
from flatout.plan.layouts import LAYOUT_PARAMETERS, Columns, TrainingSpec

_SHORT = {"mbs": "micro_batch", "micro-batch": "micro_batch", "sequence_parallel": "sp"}
_NAMES = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
_SWITCHES = ("sp", "offload")
_SWITCH_VALUES = {"on": 1, "1": 1, "yes": 1, "true": 1, "off": 0, "0": 0, "no": 0, "false": 0}


def only(spec: TrainingSpec, columns: Columns, fixed: Sequence[str]) -> Columns:
    """Return the rows that have each `PARAMETER=VALUE`.

    Raise UsageError if the parameter or its value does not exist, and InputError if no valid layout has it.
    """
    everything = columns
    text_of: dict[str, str] = {}
    for text in fixed:
        parameter, wanted = _parsed(text)
        if text_of.setdefault(parameter, text) != text:
            raise UsageError(
                f"--fix takes one value of a layout parameter, but got `{text_of[parameter]}` and `{text}`"
            )
        has_value = columns[parameter] == wanted
        if not has_value.any():
            if (everything[parameter] == wanted).any():
                others = ", ".join(other for other in fixed if other != text)
                raise InputError(f"no valid layout has {text} together with {others}", hint="remove one of them")
            raise _not_valid(spec, columns, parameter, wanted)
        columns = {name: values[has_value] for name, values in columns.items()}
    return columns


def _parsed(text: str) -> tuple[str, int]:
    """Return the parameter, and its value as in the columns."""
    name, _, value = text.partition("=")
    parameter = _SHORT.get(name, name)
    if parameter not in LAYOUT_PARAMETERS or not value:
        raise UsageError(f"--fix must be PARAMETER=VALUE, but is `{text}`", hint=_parameter_hint(name))
    if parameter in _NAMES:
        names = _NAMES[parameter]
        wanted, kind = (names.index(value) if value in names else None), " or ".join(names)
    elif parameter in _SWITCHES:
        wanted, kind = _SWITCH_VALUES.get(value), "on or off"
    else:
        is_whole = value.isascii() and value.isdigit()
        wanted, kind = (int(value) if is_whole else None), "a whole number"
    if wanted is None:
        raise UsageError(f"--fix {parameter} must be {kind}, but is `{value}`")
    return parameter, wanted


def _parameter_hint(name: str) -> str:
    close = difflib.get_close_matches(name, [*LAYOUT_PARAMETERS, *_SHORT], n=1)
    nearest = f"the nearest is `{close[0]}`; " if close else ""
    return f"{nearest}layout parameters: {', '.join(LAYOUT_PARAMETERS)}; for example: --fix tp=8"


def _not_valid(spec: TrainingSpec, columns: Columns, parameter: str, wanted: int) -> InputError:
    """Return the error for a value that no layout has, with the rule and the valid values."""
    possible = sorted({int(value) for value in columns[parameter]})
    names = _NAMES.get(parameter)
    if names:
        return InputError(
            f"no valid layout has {parameter} {names[wanted]}",
            hint=f"possible with the other fixed values: {', '.join(names[value] for value in possible)}",
        )
    nearest = min(possible, key=lambda value: abs(value - wanted))
    return InputError(
        f"{_rule(spec, parameter)}, but got {parameter} = {wanted} on {spec.cluster.num_gpus} GPUs",
        hint=f"the nearest that works is {parameter} = {nearest}",
    )


def _rule(spec: TrainingSpec, parameter: str) -> str:
    """Return the rule for values of the parameter, with this training's numbers."""
    workload = spec.workload
    rules = {
        "tp": f"tp must divide {workload.num_heads} heads, a hidden width of {workload.hidden} and the number of GPUs",
        "pp": f"pp must split {workload.num_layers} layers and divide the number of GPUs",
        "vpp": f"pp * vpp must divide {workload.num_layers} layers, and pp the number of micro-batches",
        "cp": f"2 * cp * tp must divide sequences of {spec.seq} tokens, and cp the number of GPUs",
        "etp": "etp must divide tp and the width of an expert, and the model must have experts",
        "ep": f"ep must divide {workload.num_experts} experts and the GPUs of a pipeline stage",
        "sp": "sequence parallelism needs tp above 1",
        "zero": "ZeRO 2 needs one micro-batch per step and no pipeline, and any ZeRO more than one replica",
        "shard": f"shards are over all replicas (0), or over those in an NVLink domain of {spec.cluster.nvlink_domain}",
        "micro_batch": f"dp * micro_batch must divide a global batch of {spec.global_batch}",
    }
    return rules.get(parameter, f"no valid layout has {parameter}")
