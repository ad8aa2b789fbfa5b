"""What a process of a JAX trial writes reaches the gate: also a loss that is not finite."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flatout.inside.xla_steps import _as_json
from flatout.xla_tuner.trial import read_processes


@pytest.mark.parametrize("loss", [1.5, math.nan, math.inf, -math.inf])
def test_a_loss_is_read_as_it_was_written(tmp_path: Path, loss: float) -> None:
    lines = [{"facts": {"platform": "cpu"}}, *({"mark": number, "s": float(number)} for number in range(4))]
    lines.insert(2, {"loss": _as_json(loss), "mark": 0})
    written = "\n".join(json.dumps(line, allow_nan=False) for line in lines)
    (tmp_path / "0.jsonl").write_text(f'{written}\n{{"s": 4')  # ended while it wrote
    read = read_processes(tmp_path)
    assert read is not None and read.facts == {"platform": "cpu"} and read.step_s == ((1.0, 1.0, 1.0),)
    assert read.losses == pytest.approx((loss,), nan_ok=True)
