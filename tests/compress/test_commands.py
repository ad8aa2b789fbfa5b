"""The commands and limits that a user writes, and the metric that an evaluation prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.compress.commands import is_higher_better, parse_batches, parse_max_loss, user_command
from flatout.compress.printed import read_evaluation
from flatout.compress.sizes import bytes_on_disk
from flatout.errors import InputError, UsageError
from flatout.records.compression import Evaluation, MaxLoss


def test_a_command_with_variables_and_places() -> None:
    command = user_command("--bench", "A=1 python infer.py --model {model} -b{batch}")
    assert (command.variables, command.has_model, command.has_batch) == ({"A": "1"}, True, True)
    filled = command.filled(model="m.onnx", batch=8)
    assert filled.words == ("python", "infer.py", "--model", "m.onnx", "-b8")


@pytest.mark.parametrize("text", ["", "A=1", "python a.py && b", "python 'a"])
def test_what_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="`--eval`"):
        user_command("--eval", text)


@pytest.mark.parametrize(
    ("text", "limit"), [("1%", (0.01, True)), ("0.5", (0.5, False)), (" 2.5 % ", (0.025, True)), (".1", (0.1, False))]
)
def test_limits(text: str, limit: tuple[float, bool]) -> None:
    assert parse_max_loss(text) == MaxLoss(value=pytest.approx(limit[0]), is_relative=limit[1])


@pytest.mark.parametrize("text", ["0", "0%", "-1%", "much", "100%", "nan", "1%%"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="`--max-loss` must be"):
        parse_max_loss(text)


def test_batches() -> None:
    assert (parse_batches(None), parse_batches("1, 8,8")) == ((), (1, 8))
    with pytest.raises(UsageError, match="`--batches` must be whole numbers above 0"):
        parse_batches("1,0")


def test_the_direction_of_a_metric_is_that_of_its_name() -> None:
    assert [is_higher_better(name) for name in ("accuracy", "f1", "loss", "WER")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("output", "evaluation"),
    [
        ("accuracy=0.5\nepoch 2, accuracy: 0.913 (n=360)\ndone\n", Evaluation(value=0.913, num_samples=360)),
        ("top1_accuracy=0.1\naccuracy = 9.1e-1", Evaluation(value=0.91)),
        ('{"accuracy": 0.75, "n": 8}', Evaluation(value=0.75, num_samples=8)),
        ('{"accuracy": 0.5, "samples": [1, 0]}', Evaluation(value=0.5, num_samples=2, samples=(1.0, 0.0))),
        ('{"samples": [1, 0, 0, 0], "f1": 1}', Evaluation(value=0.25, num_samples=4, samples=(1.0, 0.0, 0.0, 0.0))),
    ],
)
def test_the_last_line_that_has_the_metric_counts(tmp_path: Path, output: str, evaluation: Evaluation) -> None:
    (tmp_path / "log").write_text(output)
    assert read_evaluation(tmp_path / "log", "accuracy") == evaluation


def test_what_an_evaluation_must_print(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loss=3\n")
    with pytest.raises(InputError, match="`--eval` printed no `accuracy`"):
        read_evaluation(log, "accuracy")
    log.write_text('{"accuracy": 0.9, "samples": [1, 0]}')
    with pytest.raises(InputError, match=r"must be the mean of its `samples`, but it is 0.9 and their mean is 0.5"):
        read_evaluation(log, "accuracy")


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 3)
    (tmp_path / "in" / "b").write_bytes(b"x" * 5000)
    assert (bytes_on_disk(tmp_path), bytes_on_disk(tmp_path / "a"), bytes_on_disk(tmp_path / "c")) == (5003, 3, None)
