"""The CSV of measured use."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.read.usage import read_usage
from flatout.records.attempts import Usage


def test_a_cell_may_be_empty_and_columns_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "usage.csv"
    path.write_text("\ufeffpower_w, job ,host\n,7,n1\n300.5,8_1,n2\n")
    assert read_usage(path) == {"7": Usage(job="7"), "8_1": Usage(job="8_1", power_w=300.5)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have the column job"),
        ("job\n1\n", "and one of busy_share, power_w, checkpoint_interval_s"),
        ("job,busy_share\n1,82\n", "line 2: busy_share must be a share from 0 to 1, but is `82`"),
        ("job,busy_share\n1,nan\n", "line 2: busy_share"),
        ("job,power_w\n1,-3\n", "line 2: power_w must be watts"),
        ("job,checkpoint_interval_s\n1,0\n", "line 2: checkpoint_interval_s must be seconds above 0"),
        ("job,power_w\n1,3\n1,4\n", "line 3: job 1 is there twice"),
        ("job,power_w\n,3\n", "line 2: `job` is empty"),
        ('job,power_w\n"1,3\n', "is not valid CSV"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "usage.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_usage(path)
