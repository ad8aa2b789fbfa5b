"""The user's commands as processes: what each evaluation gets."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.compress.backend import UNTOUCHED_VARIANT
from flatout.compress.commands import user_command
from flatout.compress.processes import CompressionProcesses
from flatout.launch import StandardInput


def test_each_evaluation_gets_the_users_standard_input_from_its_beginning(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"accuracy": 0.75}\n')
    os.close(writing)
    cat = user_command("--eval", "cat")
    processes = CompressionProcesses(
        cat, cat, tmp_path, metric="accuracy", mark="mark", say=print, standard_input=StandardInput(reading)
    )
    for _ in range(2):
        evaluation = processes.evaluate(UNTOUCHED_VARIANT, is_final=False).evaluation
        assert evaluation is not None and evaluation.value == 0.75
    os.close(reading)
