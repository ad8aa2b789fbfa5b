from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import InputError, OutputError
from flatout.predict.history import append_history, prediction_record, read_history
from flatout.records.prediction import Prediction

PREDICTION = Prediction(change="ddp-bucket=100", family="ddp", speedup=1.5, low=1.2, high=1.8, how="", correction=0.75)


def test_what_is_appended_is_read_back_without_its_correction(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.jsonl"
    first = prediction_record(PREDICTION, 1.4, "4 x H200", "2026-11-28")
    append_history(path, [first])
    append_history(path, [first, first])
    found = read_history(path)
    assert found.records == (first, first, first)
    assert found.num_damaged == 0
    assert first.predicted == pytest.approx(2.0)


def test_damaged_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    good = prediction_record(PREDICTION, 1.4, "m", "d")
    append_history(path, [good])
    with path.open("ab") as file:
        file.write(b'\xff\xfe not json\n\n{"family": "ddp"}\n[1]\n')
        file.write(b'{"family":"a","change":"b","predicted":-1,"measured":1,"machine":"","date":""}\n{"family": "dd')
    append_history(path, [good])
    found = read_history(path)
    assert found.records == (good, good)
    assert found.num_damaged == 5


def test_a_history_that_is_not_there_is_empty_and_not_made(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none").records == ()
    append_history(tmp_path / "none", [])
    assert not (tmp_path / "none").exists()


def test_a_folder_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_history(tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        append_history(tmp_path, [prediction_record(PREDICTION, 1.0, "m", "d")])
