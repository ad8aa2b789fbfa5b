"""The file of a history: several writers, truncated lines, what is refused, and what is left as it is."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.track.series import result, write_history

from flatout.errors import InputError, OutputError
from flatout.track import history_file
from flatout.track.history_file import append_results, read_history


def test_what_is_added_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.jsonl"
    first, second = result(1, 0.1), result(2, 0.2)
    assert append_results(path, [first]) == [first]
    append_results(path, [second])
    assert read_history(path).results == (first, second)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_result_is_added_once(tmp_path: Path) -> None:
    path = write_history(tmp_path / "history.jsonl", [result(1, 0.1)])
    assert append_results(path, [result(1, 0.1), result(2, 0.2)]) == [result(2, 0.2)]
    assert len(read_history(path).results) == 2


def test_many_writers_lose_and_mix_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append_results(path, [result(number, 0.1, job="x" * 3000)]), range(60)))
    history = read_history(path)
    assert {each.measured_unix_s - 1e9 for each in history.results} == set(range(60))
    assert (len(history.results), history.num_damaged) == (60, 0)


def test_a_truncated_line_is_skipped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = write_history(tmp_path / "history.jsonl", [result(1, 0.1), result(2, 0.2)])
    path.write_bytes(path.read_bytes()[:-20])
    append_results(path, [result(3, 0.3)])
    history = read_history(path)
    assert [each.measured_unix_s - 1e9 for each in history.results] == [1, 3]
    assert history.num_damaged == 1


def test_a_first_line_that_is_truncated_does_not_stop_the_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"schema":"fla')
    append_results(path, [result(1, 0.1)])
    assert len(read_history(path).results) == 1


@pytest.mark.parametrize("content", [b"# notes\n", b'{"schema":"flatout/ledger","version":1}\n', b"\x89PNG\r\n"])
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(content)
    with pytest.raises(OutputError, match="is not a history: nothing is added"):
        append_results(path, [result(1, 0.1)])
    with pytest.raises(InputError, match="is not a history"):
        read_history(path)
    assert path.read_bytes() == content


def test_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="not a regular file"):
        append_results(tmp_path / "pipe", [result(1, 0.1)])
    with pytest.raises(OutputError, match="is a directory"):
        append_results(tmp_path, [result(1, 0.1)])


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    path = write_history(tmp_path / "history.jsonl", [result(1, 0.1)])
    with monkeypatch.context() as patched:
        patched.setattr(history_file.os, "open", refused)
        with pytest.raises(OutputError, match="read-only file system"):
            append_results(path, [result(2, 0.2)])
    assert len(read_history(path).results) == 1


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_history(tmp_path / "history.jsonl", [result(1, 0.1)])
    before = path.read_bytes()
    whole = os.write
    monkeypatch.setattr(history_file.os, "write", lambda file, data: whole(file, data[:30]))
    with pytest.raises(OutputError, match="no space left"):
        append_results(path, [result(2, 0.2)])
    assert path.read_bytes() == before


def test_lines_of_a_later_version_are_counted_and_skipped(tmp_path: Path) -> None:
    path = write_history(tmp_path / "history.jsonl", [result(1, 0.1)])
    path.write_bytes(path.read_bytes() + b'{"schema":"flatout/track","version":2,"job":7}\n')
    history = read_history(path)
    assert (len(history.results), history.num_newer, history.num_damaged) == (1, 1, 0)


def test_a_missing_history_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_history(tmp_path / "history.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_history_that_another_tool_wrote_with_spaces_is_read_and_added_to(tmp_path: Path) -> None:
    path = write_history(tmp_path / "history.jsonl", [result(1, 0.1)])
    path.write_bytes(path.read_bytes().replace(b'":', b'": '))
    assert len(read_history(path).results) == 1
    assert len(append_results(path, [result(2, 0.2)])) == 1


@pytest.mark.parametrize("text", ['{"schema":"flatout/trial"}\n', "notes\n", '{"other":1}\n'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a history of results"):
        read_history(path)
