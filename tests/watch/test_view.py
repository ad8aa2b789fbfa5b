"""The view of a job: what it knows, what it says about a lost rank, and that it fits each terminal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tests.keep.beating import Clock, Rank

from flatout.cli.watch import watch
from flatout.errors import InputError, UsageError
from flatout.keep.heartbeats import HeartbeatReader
from flatout.keep.peer_board import LOST_AFTER_S, PeerRank, PeerStatus
from flatout.records.watch import GpuStatus, RankStatus, WatchStatus
from flatout.report.terminal import TextStyle
from flatout.report.watch_text import top_lines, watch_lines
from flatout.watch import jobs
from flatout.watch.jobs import RunningJob, choose_job
from flatout.watch.view.gpu_status import GpuReadings
from flatout.watch.view.live import JOB_ENDED, JobScreen
from flatout.watch.view.process_status import ProcessStatus
from flatout.watch.view.run_status import RunStatus
from flatout.watch.view.screen import keys_of

S = 10**9
HEADER_BYTES = 4096


def job_in(folder: Path, ledger: Path | None = None) -> RunningJob:
    return RunningJob(program="flatout run", name="train.py", pid=7, folder=folder, pids=(8, 9), ledger=ledger)


def beating_job(
    folder: Path, patch: pytest.MonkeyPatch, num_ranks: int = 2, world_size: int = 2, first_checkpoint_s: int = 0
) -> list[Rank]:
    """Make ranks with steps of 0.5 s; rank 1 waits 0.1 s of them for data, and was 60 ms late to the last exchange.

    A checkpoint of `first_checkpoint_s` is loaded within the first step.
    """
    clock = Clock(time.monotonic_ns() - 60 * S)
    ranks = [Rank(folder / "attempt-0", number, world_size, clock, patch) for number in range(num_ranks)]
    for number, rank in enumerate(ranks):
        if first_checkpoint_s:
            rank.spends("checkpoint", first_checkpoint_s * S)
        for _ in range(30):
            rank.spends("compute", 4 * S // 10)
            rank.spends("data" if number == 1 else "compute", S // 10)
            rank.steps()
        rank.beat.exchanged(11, (80 - 60 * number) * 10**6, per_step=1, num_ranks=num_ranks)
    return ranks


def killed(rank: Rank) -> None:
    """Give the heartbeat the PID of a process that does not exist."""
    data = rank.path.read_bytes()
    header = json.loads(data[:HEADER_BYTES].partition(b"\n")[0])
    header["ticks"] += 1
    text = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    rank.path.write_bytes(text + data[len(text) :])


def status_of(folder: Path, ledger: Path | None = None) -> WatchStatus:
    return RunStatus(job_in(folder, ledger), GpuReadings()).read()


def test_steps_waits_and_lateness_are_those_of_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beating_job(tmp_path, monkeypatch)
    status = status_of(tmp_path)
    assert [rank.step_s for rank in status.ranks] == pytest.approx([0.5, 0.5])
    assert [rank.data_share for rank in status.ranks] == pytest.approx([0, 0.2])
    assert [rank.late_s for rank in status.ranks] == pytest.approx([0, 0.06])
    assert status.step_s == pytest.approx(0.5) and status.missing_ranks == ()
    assert {rank.state for rank in status.ranks} == {"running"} and {rank.steps for rank in status.ranks} == {30}


def test_checkpoints_and_evaluations_are_shares_of_the_time_since_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = beating_job(tmp_path, monkeypatch, first_checkpoint_s=7)
    before_s = 29 * 0.5  # from the end of the first step to that of the last one
    ranks[1].spends("checkpoint", 3 * 10**9)
    ranks[1].spends("evaluation", 2 * 10**9)
    ranks[1].spends("compute", 5 * 10**8)
    ranks[1].steps()
    first, second = status_of(tmp_path).ranks
    assert (first.checkpoint_share, first.evaluation_share) == (0, 0)
    total_s = before_s + 5.5
    assert (second.checkpoint_share, second.evaluation_share) == pytest.approx((3 / total_s, 2 / total_s))
    wide = TextStyle(width=200)
    row = next(line for line in watch_lines(status_of(tmp_path), wide) if line.split()[:1] == ["1"])
    assert "15 %" in row and "10 %" in row


def test_a_killed_rank_is_lost_one_that_ended_is_not_and_one_never_seen_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = beating_job(tmp_path, monkeypatch, num_ranks=3, world_size=4)
    killed(ranks[1])
    ranks[2].beat.set("has_ended", 5)
    killed(ranks[2])
    status = status_of(tmp_path)
    assert [rank.state for rank in status.ranks] == ["running", "lost", "ended"] and status.missing_ranks == (3,)
    lines = watch_lines(status, TextStyle())
    assert "LOST: rank 1" in lines and any("not seen here: ranks 3" in line for line in lines)
    assert next(line for line in lines if "LOST " in line and line.split()[0] == "1")


def test_ranks_of_other_nodes_are_shown_and_lost_when_their_node_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating_job(tmp_path, monkeypatch, num_ranks=2, world_size=6)
    (tmp_path / "books" / "nodes").mkdir(parents=True)
    own = tuple(PeerRank(rank=rank, steps=30, phase="compute", sequences={}) for rank in (0, 1))
    for node, key, numbers in (("n1", "k", ()), ("n2", "k", (2, 3)), ("n3", "k", (4, 5)), ("n4", "other", (2, 3))):
        ranks = own if node == "n1" else tuple(
            PeerRank(rank=rank, steps=29, phase="data", sequences={}, step_s=0.5) for rank in numbers
        )  # fmt: skip
        path = tmp_path / "books" / "nodes" / f"{node}.json"
        path.write_bytes(msgspec.json.encode(PeerStatus(node=node, node_key=key, ranks=ranks)))
    silent = tmp_path / "books" / "nodes" / "n3.json"
    for age_s, state in ((LOST_AFTER_S - 2, "running"), (LOST_AFTER_S + 1, "lost")):
        os.utime(silent, (time.time() - age_s, time.time() - age_s))
        status = status_of(tmp_path, tmp_path / "books" / "ledger-n1.jsonl")
        assert [(rank.rank, rank.host) for rank in status.ranks[2:]] == [(2, "n2"), (3, "n2"), (4, "n3"), (5, "n3")]
        assert [rank.state for rank in status.ranks] == ["running"] * 4 + [state] * 2
        assert status.missing_ranks == ()


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"\x1b[C\x1b[C\x1b[C", ["right"] * 3),
        (b"s\x1b[6~p", ["s", "page-down", "p"]),
        (b"\x1b", ["q"]),
        (b"\x1b[1;5C", ["\x1b[1;5C"]),
    ],
)
def test_each_key_counts_where_a_terminal_sends_several_at_once(sent: bytes, keys: list[str]) -> None:
    assert keys_of(sent) == keys


def rank_of(number: int) -> RankStatus:
    gpu = GpuStatus(index=0, busy_percent=97, sm_clock_hz=1.755e9, power_w=640, memory_used_bytes=70 << 30)
    return RankStatus(
        rank=number, host="a-node-with-a-long-name", pid=5, state="running", steps=123_456, step_s=0.312,
        data_share=0.01, late_s=0.002, age_s=0.1, memory_bytes=3 << 30, gpu=gpu, phase="compute",
    )  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10)])
@pytest.mark.parametrize("num_ranks", [0, 1, 8, 512])
def test_the_screen_has_exactly_the_size_of_the_terminal(width: int, height: int, num_ranks: int) -> None:
    status = WatchStatus(
        name="a name that is longer than any terminal is wide" * 9, program="flatout run", pid=7, attempt=0,
        world_size=num_ranks, ranks=tuple(map(rank_of, range(num_ranks))), missing_ranks=(), step_s=0.3,
        goodput=0.9, devices=8, notes=("a note " * 40, "another"),
    )  # fmt: skip
    for first_row in (0, 3, 10_000):
        lines = watch_lines(status, TextStyle(width=width), height=height, first_row=first_row, has_keys=True)
        assert len(lines) == height and max(map(len, lines)) <= width
    if num_ranks == 512:
        assert any(line.split()[:1] == ["511"] for line in lines), "one can scroll to the last rank"
    assert all("\x1b" not in line for line in lines), "readable without colour"


def test_a_terminal_of_80_columns_shows_what_matters_on_gpus_and_the_rest_by_scrolling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = WatchStatus(
        name="train.py", program="flatout run", pid=7, attempt=0, world_size=1, ranks=(rank_of(0),), missing_ranks=(),
        step_s=0.3, goodput=0.9, devices=8,
    )  # fmt: skip
    beating_job(tmp_path, monkeypatch)
    source = RunStatus(job_in(tmp_path), GpuReadings())
    monkeypatch.setattr(source, "read", lambda: status)
    view = JobScreen(source)

    def header() -> str:
        return next(line for line in view.render(TextStyle(), 24) if line.split()[:1] == ["rank"])

    assert header().split() == ["rank", "state", "steps", "step", "data", "late", "GPU", "MHz", "watts", "GPU", "mem"]
    view.on_key("left")
    assert header().split()[1] == "state"
    for key in ("right", "l"):
        view.on_key(key)
    assert header().split()[:2] == ["rank", "step"] and header().split()[-1] == "memory"
    for _ in range(30):
        view.on_key("right")
    assert header().split() == ["rank", "host"]
    view.on_key("h")
    assert header().split() == ["rank", "phase", "host"]


def test_a_view_sorts_pauses_and_keeps_the_last_status_of_a_job_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = beating_job(tmp_path, monkeypatch)
    view = JobScreen(RunStatus(job_in(tmp_path), GpuReadings()))
    for _ in range(25):
        ranks[1].spends("compute", S)
        ranks[1].steps()

    def first_rank() -> str:
        lines = view.render(TextStyle(), 24)
        return next(line.split()[0] for line in lines if line.split()[:1] in (["0"], ["1"]))

    assert first_rank() == "0"
    view.on_key("s")
    assert first_rank() == "1"
    view.on_key("p")
    for rank in ranks:
        rank.path.unlink()
    (tmp_path / "attempt-0").rename(tmp_path / "gone")
    assert JOB_ENDED not in "\n".join(view.render(TextStyle(), 24))
    view.on_key("p")
    lines = view.render(TextStyle(), 24)
    assert any(line.startswith("the job has ended") for line in lines) and first_rank() == "1"


def test_heartbeats_that_are_removed_while_they_are_read_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating_job(tmp_path, monkeypatch)
    gone = tmp_path / "attempt-0" / "beat-gone-9"
    listed = [*(tmp_path / "attempt-0").glob("beat-*"), gone]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(listed))
    assert len(HeartbeatReader(tmp_path / "attempt-0").read()) == 2


def test_a_process_of_somebody_else_is_attached_as_far_as_proc_shows() -> None:
    status = ProcessStatus(os.getpid(), GpuReadings()).read()
    (rank,) = status.ranks
    assert (rank.pid, rank.state, rank.steps, rank.step_s) == (os.getpid(), "running", None, None)
    assert rank.memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert any("steps are unknown" in note for note in status.notes)
    with pytest.raises(InputError, match="does not exist"):
        ProcessStatus(2**22 + 1, GpuReadings())


def test_a_job_is_chosen_by_name_pid_or_folder_and_several_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [job_in(tmp_path), msgspec.structs.replace(job_in(tmp_path / "b"), name="other.py", pid=70, pids=(80,))]
    monkeypatch.setattr(jobs, "running_jobs", lambda: running)
    assert choose_job("train.py") == choose_job("9") == choose_job(str(tmp_path)) == running[0]
    assert choose_job("other.py") == choose_job("70") == running[1]
    with pytest.raises(InputError, match="2 jobs run here") as several:
        choose_job(None)
    assert "7 (train.py); 70 (other.py)" in several.value.hint
    with pytest.raises(InputError, match=r"no running job is called nope\.py"):
        choose_job("nope.py")
    running.clear()
    with pytest.raises(InputError, match="or `flatout profile` runs here"):
        choose_job(None)


def test_top_has_one_line_per_job_that_fits() -> None:
    status = WatchStatus(
        name="x" * 200, program="flatout run", pid=7, attempt=0, world_size=2,
        ranks=(rank_of(0), msgspec.structs.replace(rank_of(1), state="lost")), missing_ranks=(), step_s=0.3,
        goodput=None, devices=2,
    )  # fmt: skip
    _, line = top_lines([status], TextStyle())
    assert line.split()[:6] == ["7", "2/2", "1", "300", "ms", "1.0"] and len(line) == 80
    assert len(top_lines([status] * 9, TextStyle(), height=10)) == 10
    *shown, rest = top_lines([status] * 12, TextStyle(), height=10)
    assert len(shown) == 9 and rest == "4 more: flatout top --once"


@pytest.mark.parametrize(
    ("width", "columns", "shown"),
    [
        (80, ["PID", "ranks", "lost", "step", "data", "goodput", "job"], "train_large_transformer_on_node_17.py"),
        (40, ["PID", "ranks", "lost", "step", "job"], "train_..._17.py"),
        (34, ["PID", "lost", "step", "job"], "train_..._17.py"),
    ],
)
def test_top_keeps_both_ends_of_a_name_on_a_narrow_terminal(width: int, columns: list[str], shown: str) -> None:
    status = WatchStatus(
        name="train_large_transformer_on_node_17.py", program="flatout run", pid=70_123, attempt=0, world_size=2,
        ranks=(rank_of(0), msgspec.structs.replace(rank_of(1), state="lost")), missing_ranks=(), step_s=0.3,
        goodput=0.9, devices=2,
    )  # fmt: skip
    short = msgspec.structs.replace(status, name="a.py", pid=7)
    title, line, other = top_lines([status, short], TextStyle(width=width))
    assert title.split() == columns
    assert line.endswith(f"  {shown}") and other.endswith("  a.py") and other.index("a.py") == line.index(shown)
    assert max(len(title), len(line)) <= width


def test_top_without_a_job_says_how_to_start_one() -> None:
    lines = top_lines([], TextStyle(width=40))
    assert lines[-1] == "start one: flatout run -- COMMAND" and max(map(len, lines)) <= 40


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attach": 4711, "record": 3}, "`--record` needs a job of `flatout run`"),
        ({"attach": 4711, "follow": True}, "`--follow` needs a job of `flatout run`"),
        ({"attach": 4711, "job": "train.py"}, "shows one job, but train.py and --attach 4711 are two"),
        ({"once": True, "record": 3}, "`--once` prints the status, but `--record`"),
        ({"out": Path("traces")}, "`--out` is the folder for traces"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        watch(**options)
