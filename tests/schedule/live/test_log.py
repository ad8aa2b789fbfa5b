"""The log is on disk before an action is done, survives what a crash leaves, and is refused where it is another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.schedule.live.made import NOW, cluster, node, pending, running

from flatout.errors import InputError, OutputError
from flatout.schedule.live.actions import Action, Kind
from flatout.schedule.live.log import LogFile, read_log
from flatout.schedule.live.undo import steps
from flatout.schedule.live.view import ClusterView, NodeFailure


def action(kind: Kind, target: str, before: str, after: str) -> Action:
    return Action(kind=kind, target=target, previous=before, value=after, reason="test")


def opened(path: Path, cluster_name: str = "lab") -> LogFile:
    return LogFile(path, cluster=cluster_name, command=["flatout", "schedule", "slurm"])


PRIORITY = action("priority", "1", "5", "9")


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    with opened(path) as log:
        log.end(log.begin(PRIORITY), "done")
        log.end(log.begin(PRIORITY), "failed", "no")
        log.begin(PRIORITY)
        log.failed(NodeFailure(node="a", unix_s=NOW))
        log.undone(log.entries[0])
        entries, failures = log.entries, log.failures
    with opened(path) as log:
        assert (log.entries, log.failures) == (entries, failures)
    assert [(entry.outcome, entry.is_undone) for entry in entries] == [
        ("done", True),
        ("failed", False),
        ("unknown", False),
    ]


def test_a_line_that_a_crash_cut_short_is_an_action_that_was_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        log.begin(PRIORITY)
    whole = path.read_bytes()
    cut = whole.index(b'{"event"')
    for end in range(cut + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        with opened(path) as log:
            assert log.entries == []
            log.end(log.begin(PRIORITY), "done")
        assert [entry.outcome for entry in read_log(path, cluster="lab")[0]] == ["done"]


def test_it_is_locked_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened(path), pytest.raises(OutputError, match="in use by another controller"), opened(path):
        pass
    with opened(path):
        pass


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\n", "is not a log"),
        ("{}\n", "is not a log"),
        ('{"schema":"flatout/schedule-log","version":1,"cluster":"other"}\n', "belongs to cluster `other`"),
        (
            '{"schema":"flatout/schedule-log","version":1,"cluster":"lab"}\n{"event":"end","number":7}\n',
            "cannot be read",
        ),
    ],
)
def test_what_is_no_log_of_this_cluster_is_refused_and_left_as_it_is(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InputError, match=why) as error, opened(path):
        pass
    assert "\n" not in str(error.value)
    assert path.read_text() == text
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_log(tmp_path / "none", cluster="lab")


def undone(view: ClusterView, tmp_path: Path, *actions: Action) -> list[str]:
    with opened(tmp_path / "log") as log:
        for each in actions:
            log.end(log.begin(each), "done")
        return [
            f"{step.action.kind} {step.action.target} {step.action.value}" if step.action else f"skipped: {step.why}"
            for step in steps(log.entries, view)
        ]


def test_undo_goes_back_through_all_changes_of_one_job(tmp_path: Path) -> None:
    view = cluster(pending("1", priority=9))
    first = action("priority", "1", "3", "5")
    assert undone(view, tmp_path, first, PRIORITY) == ["priority 1 5", "priority 1 3"]


def test_undo_leaves_what_was_changed_since(tmp_path: Path) -> None:
    nodes = [node("a", is_drained=True, reason="broken fan"), node("b", is_drained=True, reason="flatout: x")]
    jobs = [pending("1", priority=7), running("2", {"a": 1}), pending("4", is_held=True), pending("5")]
    actions = [
        PRIORITY,
        action("priority", "2", "5", "9"),
        action("priority", "3", "5", "9"),
        action("requeue-hold", "4", "running since 1", "requeued"),
        action("requeue-hold", "5", "running since 1", "requeued"),
        action("drain", "a", "in service", "flatout: x"),
        action("drain", "b", "in service", "flatout: x"),
        action("reserve", "r", "absent", "present"),
        action("reserve", "gone", "absent", "present"),
    ]
    assert undone(cluster(*jobs, *nodes, reservations=("r",)), tmp_path, *actions) == [
        "skipped: it no longer exists",
        "unreserve r absent",
        "resume b in service",
        "skipped: it is now broken fan, not flatout: x as it was set",
        "skipped: it is no longer held, and a requeue cannot be undone",
        "release 4 free",
        "skipped: it has started, ended or disappeared",
        "skipped: it has started, ended or disappeared",
        "skipped: it is now 7, not 9 as it was set",
    ]
