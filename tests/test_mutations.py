"""`benchmarks/mutate_thresholds.py` can collect the tests of every room, as its mutants do: else it says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.mutate_thresholds import EQUIVALENT, ROOMS, SOURCES, mutants_of, run

OTHER_MARKS = re.compile(r"\bmark\.(?!parametrize\b)")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_sources_with_mutants(room: str) -> None:
    patterns, _ = ROOMS[room]
    for pattern in patterns:
        paths = sorted(SOURCES.glob(pattern))
        assert paths, pattern
        assert any(True for path in paths for _ in mutants_of(path)), pattern


def test_tests_with_marks_of_plugins_are_collected(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner passes options of its own; a mark that they take away would end the collection of a file."""
    monkeypatch.chdir(pytestconfig.rootpath)
    folders = {Path(path) for _, tests in ROOMS.values() for path in tests}
    files = {file for path in folders for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    marked = sorted(str(file) for file in files if OTHER_MARKS.search(file.read_text()))
    assert "tests/trial/test_gates.py" in marked
    outcome = run(None, ("--collect-only", *marked), 60)
    assert (outcome.is_killed, outcome.problem) == (False, "")


def test_every_equivalent_mutant_is_still_there() -> None:
    lines = {
        (mutant.source, mutant.was)
        for patterns, _ in ROOMS.values()
        for pattern in patterns
        for path in SOURCES.glob(pattern)
        for mutant in mutants_of(path)
    }
    gone = [key for key in EQUIVALENT if not any(key[0] in source and key[1] == was for source, was in lines)]
    assert gone == []
