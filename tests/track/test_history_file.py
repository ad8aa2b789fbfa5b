"""What is taken for a history, and what is left as it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flatout.errors import InputError
from flatout.records.tracking import Measure, TrackedResult
from flatout.track.history_file import append_results, read_history


def result(digest: str = "0") -> TrackedResult:
    return TrackedResult(
        job="train",
        machine="one",
        source="flatout/bench",
        measures=(Measure(name="step_s", value=1.0, unit="s", direction="lower"),),
        environment={},
        measured_unix_s=1.0,
        digest=digest,
    )


def test_a_history_that_another_tool_wrote_with_spaces_is_read_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_results(path, [result()])
    spaced = msgspec.json.format(path.read_bytes().strip(), indent=-1).replace(b'":', b'": ') + b"\n"
    path.write_bytes(spaced)
    assert [each.digest for each in read_history(path).results] == ["0"]
    assert len(append_results(path, [result("1")])) == 1


def test_a_truncated_first_line_is_a_history_still(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_results(path, [result()])
    path.write_bytes(path.read_bytes()[:9])
    append_results(path, [result("1")])
    assert [each.digest for each in read_history(path).results] == ["1"]


@pytest.mark.parametrize("text", ['{"schema":"flatout/trial"}\n', "notes\n", '{"other":1}\n'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a history of results"):
        read_history(path)
