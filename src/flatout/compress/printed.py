"""Read the metric from what an evaluation printed.

In: its output. Out: an `Evaluation`. The last line with the metric counts. It is `accuracy=0.913`, with `n=360` on
the same line if it is known, or a JSON object: {"accuracy": 0.913, "n": 360}, or, with the result of each sample, whose
mean is the metric, {"accuracy": 0.913, "samples": [1, 0, 1]}.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from flatout.errors import InputError
from flatout.input_files import read_end
from flatout.records.compression import Evaluation

MAX_OUTPUT_BYTES = 64 << 20
_SAMPLES = "samples"
_COUNTS = ("n", "num_samples")
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_MOST_DIFFERENCE = 0.005  # of a metric, rounded as it is printed, from the mean of its samples


def read_evaluation(output: Path, metric: str, option: str = "--eval") -> Evaluation:
    """Return the metric that the output ends with. Raises InputError if it has none."""
    text = read_end(output, max_bytes=MAX_OUTPUT_BYTES).decode(errors="replace")
    pattern = re.compile(rf"(?<![\w.]){re.escape(metric)}\s*[=:]\s*{_NUMBER}")
    for line in reversed(text.splitlines()):
        found = _of_json(line, metric) if line.lstrip().startswith("{") else None
        if found is None and (match := pattern.search(line)) is not None:
            found = Evaluation(value=float(match[1]), num_samples=_count_in(line))
        if found is not None:
            return found
    raise InputError(
        f"`{option}` printed no `{metric}`",
        hint=f'print a line such as {metric}=0.913 n=1000, or {{"{metric}": 0.913, "samples": [1, 0, ...]}}; '
        f"its output is in {output}",
    )


def _of_json(line: str, metric: str) -> Evaluation | None:
    """Return the evaluation in a line of JSON; None if it is none, or lacks the metric."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    samples = _samples(content.get(_SAMPLES))
    value = content.get(metric)
    if samples and not _is_number(value):
        value = math.fsum(samples) / len(samples)
    if not isinstance(value, (int, float)):
        return None
    if samples and not _is_mean(value, samples):
        raise InputError(
            f"`{metric}` must be the mean of its `{_SAMPLES}`, but it is {value:g} and their mean is "
            f"{math.fsum(samples) / len(samples):g}"
        )
    counts = [content[name] for name in _COUNTS if isinstance(content.get(name), int)]
    num_samples = len(samples) or next(iter(counts), None)
    return Evaluation(value=float(value), num_samples=num_samples, samples=samples)


def _samples(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        return ()
    return tuple(float(value) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_mean(value: float, samples: tuple[float, ...]) -> bool:
    mean = math.fsum(samples) / len(samples)
    return not math.isfinite(mean) or abs(value - mean) <= _MOST_DIFFERENCE * max(abs(mean), 1e-9)


def _count_in(line: str) -> int | None:
    match = re.search(r"(?<![\w.])(?:n|num_samples)\s*[=:]\s*(\d+)", line)
    return int(match[1]) if match is not None else None
