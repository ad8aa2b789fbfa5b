"""The controller on a real Slurm with 64 nodes of 8 GPUs: what it does is what Slurm then does."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.schedule.live.lab import Lab

pytestmark = pytest.mark.usefixtures("warm")

ALL = ("-N64", "--gres=gpu:8")
ONE = ("-N1", "--gres=gpu:8")
URGENT = ("--comment=urgent", *ONE)
FOR_URGENT = ("--urgent", "comment=*urgent*")


def counted(path: Path) -> tuple[list[int], list[list[str]]]:
    """The numbers that a counter wrote, and its starts: at, node, restarts. None yet, if it has only just begun."""
    if not path.exists():
        return [], []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [int(words[0]) for words in lines if len(words) == 1], [
        [words[0], *words[2:]] for words in lines if len(words) > 1
    ]


def test_urgent_work_preempts_the_least_lost_work_and_the_victim_resumes(lab: Lab) -> None:
    wall = lab.submit("-N62", "--gres=gpu:8", "--no-requeue")
    older = lab.submit("--requeue", *ONE, counts_in="older")
    lab.wait_for_state(older, "RUNNING")
    time.sleep(1.5)
    younger = lab.submit("--requeue", *ONE, counts_in="younger")
    lab.wait_for_state(younger, "RUNNING")
    urgent = lab.submit(*URGENT, sleep_s=1)
    lab.wait_for(lambda: lab.jobs()[urgent]["state_reason"] in ("Resources", "Priority"))
    lab.wait_for(lambda: len(counted(lab.folder / "younger")[0]) > 5)
    assert lab.state(urgent) == "PENDING"  # Slurm alone does not preempt here
    controller = lab.start("slurm", "--apply", "--interval", "1", "--log", str(lab.log), *FOR_URGENT, "--reserve")
    try:
        lab.wait_for_state(urgent, "COMPLETED")
        lab.wait_for_state(younger, "COMPLETED")
    finally:
        controller.terminate()
        out, _ = controller.communicate()
    numbers, starts = counted(lab.folder / "younger")
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    assert len(starts) == 2 and int(starts[1][0]) >= 5 and starts[1][2] == "1"  # it went on from its checkpoint
    assert len(numbers) - len(set(numbers)) <= 1
    assert len(counted(lab.folder / "older")[1]) == 1
    assert lab.jobs()[wall]["restart_cnt"] == 0 and lab.state(wall) == "RUNNING"
    assert lab.begun("requeue-hold") == [younger]
    assert lab.begun("release") == [younger]
    assert lab.begun("reserve") == lab.begun("unreserve") == [f"flatout_{urgent}"]
    assert "No reservations" in lab.slurm.run("scontrol", "show", "reservation")
    assert f"requeue job {younger} and hold it: urgent job {urgent} needs 8 GPUs" in out


def test_idle_gpus_are_reclaimed_for_a_job_that_waits(lab: Lab) -> None:
    wall = lab.submit("-N62", "--gres=gpu:8", "--no-requeue")
    idle = lab.submit("--requeue", *ONE)
    busy = lab.submit("--requeue", *ONE)
    for job in (wall, idle, busy):
        lab.wait_for_state(job, "RUNNING")
    node = lab.jobs()[idle]["nodes"]
    waiting = lab.submit(*ONE, sleep_s=2)
    usage = lab.folder / "usage.jsonl"
    reclaim = ("--usage", str(usage), "--idle-after", "3s")
    time.sleep(3)
    begin = time.time() - 3
    on = {job: lab.jobs()[job]["nodes"] for job in (idle, busy)}
    with usage.open("w") as file:  # of the time to come, too: this machine may be slow
        for sample in range(200):
            for names, share in (
                ([{"node": on[idle], "gpu": gpu} for gpu in range(8)], 0.0),
                ([{"node": on[busy], "gpu": gpu} for gpu in range(8)], 0.9),
                ([{"job": wall}], 0.9),
            ):
                for name in names:
                    file.write(json.dumps({"unix_s": begin + sample / 4, "busy": share, **name}) + "\n")
    out, _ = lab.control(*reclaim)
    assert f"requeue job {idle} and hold it: its 8 GPUs were idle for 3 s, and job {waiting} waits for 8 GPUs" in out
    lab.wait_for(lambda: lab.state(waiting) in ("RUNNING", "COMPLETED"))
    assert lab.jobs()[waiting]["nodes"] == node
    assert (lab.jobs()[busy]["restart_cnt"], lab.jobs()[wall]["restart_cnt"]) == (0, 0)
    out, _ = lab.control()
    assert f"release job {idle}: job {waiting}, for which it was requeued, has started" in out
    lab.wait_for_state(idle, "RUNNING")  # when the other has ended


def test_a_failed_nodes_job_ends_elsewhere_and_a_node_that_fails_again_is_drained(lab: Lab) -> None:
    scontrol = lambda *words: lab.slurm.run("scontrol", "update", *words)  # noqa: E731
    scontrol("nodename=n7", "state=drain", "reason=broken fan")
    controller = lab.start("slurm", "--apply", "--interval", "1", "--log", str(lab.log), "--json")
    assert controller.stdout is not None
    lines = controller.stdout

    def look() -> None:
        """The controller has seen the cluster as it is now."""
        now = time.time()
        while json.loads(lines.readline())["unix_s"] < now:
            pass

    try:
        look()
        job = lab.submit("--requeue", *ONE, counts_in="count")
        lab.wait_for(lambda: (lab.folder / "count").exists() and len(counted(lab.folder / "count")[0]) > 3)
        failing = lab.jobs()[job]["nodes"]
        scontrol(f"nodename={failing},n7", "state=down", "reason=broken fan")
        look()
        lab.wait_for_state(job, "COMPLETED")
        scontrol(f"nodename={failing}", "state=resume")
        for _ in range(2):
            look()
            scontrol(f"nodename={failing},n7", "state=down", "reason=test")
            look()
            if "flatout" not in lab.slurm.run("scontrol", "show", "node", failing):
                scontrol(f"nodename={failing}", "state=resume")
            scontrol("nodename=n7", "state=resume")
            scontrol("nodename=n7", "state=drain", "reason=broken fan")
    finally:
        controller.terminate()
        controller.communicate()
    numbers, starts = counted(lab.folder / "count")
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1)) and len(numbers) > 13
    assert starts[0][1] == failing and starts[-1][1] != failing
    assert "flatout: 3 failures in 24 h" in lab.slurm.run("scontrol", "show", "node", failing)
    assert lab.begun("drain") == [failing]  # and not n7, which a human drained
    assert "Reason=broken fan" in lab.slurm.run("scontrol", "show", "node", "n7")
    out, _ = lab.flatout("undo", str(lab.log), "--apply")
    assert out == f"resume node {failing}: undo\n"
    assert "DRAIN" not in lab.slurm.run("scontrol", "show", "node", failing).split("ThreadsPerCore")[0]


def test_the_policys_order_is_the_order_that_ran(lab: Lab) -> None:
    blocker = lab.submit(*ALL)
    lab.wait_for_state(blocker, "RUNNING")
    jobs = {minutes: lab.submit(*ALL, "-t", str(minutes), sleep_s=1.1) for minutes in (30, 10, 50, 20, 40)}
    lab.control("--policy", "shortest")
    lab.slurm.run("scancel", blocker)
    for job in jobs.values():
        lab.wait_for_state(job, "COMPLETED")
    wanted = [jobs[minutes] for minutes in (10, 20, 30, 40, 50)]
    starts = {job: lab.jobs()[job]["start_time"] for job in wanted}
    assert sorted(wanted, key=lambda job: starts[job]) == wanted and len(set(starts.values())) == len(wanted)
    ended = (lab.slurm.folder / "jobcomp.txt").read_text().splitlines()
    assert [line.split()[0].removeprefix("JobId=") for line in ended][-5:] == wanted  # by Slurm's own log
    assert len(lab.begun("priority")) == 3  # the other two were in order already


def test_a_dry_run_changes_nothing(lab: Lab) -> None:
    lab.submit("-N63", "--gres=gpu:8", "--no-requeue", "-t", "60")
    victim = lab.submit("--requeue", *ONE, "-t", "60")
    lab.wait_for_state(victim, "RUNNING")
    longer, shorter = (lab.submit(*ONE, "-t", str(minutes)) for minutes in (50, 5))
    urgent = lab.submit(*URGENT, "-t", "9")
    lab.wait_for(lambda: lab.jobs()[urgent]["state_reason"] in ("Resources", "Priority"))
    before = lab.as_it_is()
    out, error = lab.flatout("slurm", "--once", "--policy", "shortest", "--log", str(lab.log), *FOR_URGENT)
    assert lab.as_it_is() == before
    assert not lab.log.exists()
    assert f"would set priority of job {urgent} " in out and f"would requeue job {victim} and hold it: " in out
    assert f"would set priority of job {shorter} " in out or f"would set priority of job {longer} " in out
    assert "nothing was changed; pass --apply to act" in error


def test_killed_between_log_and_action_it_goes_on_without_doing_anything_twice(lab: Lab) -> None:
    lab.submit("-N63", "--gres=gpu:8", "--no-requeue")
    victim = lab.submit("--requeue", *ONE)
    lab.wait_for_state(victim, "RUNNING")
    urgent = lab.submit(*URGENT)
    lab.wait_for(lambda: lab.jobs()[urgent]["state_reason"] in ("Resources", "Priority"))
    for moment in ("before", "after"):
        path = _scontrol_that_hangs(lab, moment)
        controller = lab.start("slurm", "--apply", "--once", "--log", str(lab.log), *FOR_URGENT, env={"PATH": path})
        lab.wait_for((lab.folder / f"hangs-{moment}").exists)
        controller.send_signal(signal.SIGKILL)
        controller.communicate()
        if moment == "before":
            assert lab.jobs()[victim]["job_state"] == "RUNNING"
    out, _ = lab.control(*FOR_URGENT)
    assert f"done before the restart: requeue job {victim} and hold it" in out
    lab.wait_for_state(urgent, "RUNNING")
    assert lab.begun("requeue-hold") == [victim, victim]
    ends = [record["outcome"] for record in lab.records() if record["event"] == "end"]
    assert ends.count("failed") == 1  # the one that was killed before it acted
    lab.wait_for(lambda: bool(lab.control(*FOR_URGENT)) and lab.begun("release") == [victim])
    lab.slurm.run("scancel", urgent)
    lab.wait_for_state(victim, "RUNNING")
    assert lab.jobs()[victim]["restart_cnt"] == 1


def _scontrol_that_hangs(lab: Lab, moment: str) -> str:
    """A PATH with a `scontrol` that hangs before or after a requeue."""
    folder = lab.folder / moment
    folder.mkdir()
    hang = f"touch {lab.folder}/hangs-{moment}; exec sleep 60"
    real = "/usr/bin/scontrol"
    then = hang if moment == "before" else f'{real} "$@"; {hang}'
    (folder / "scontrol").write_text(f'#!/bin/sh\n[ "$1" = requeuehold ] && {{ {then}; }}\nexec {real} "$@"\n')
    (folder / "scontrol").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_the_limit_survives_a_restart_and_undo_leaves_what_others_changed(lab: Lab) -> None:
    blocker = lab.submit(*ALL)
    lab.wait_for_state(blocker, "RUNNING")
    jobs = [lab.submit(*ALL, "-t", str(minutes)) for minutes in (50, 40, 30, 20, 10)]
    before = {job: lab.jobs()[job]["priority"] for job in jobs}
    order = ("--policy", "shortest", "--max-actions-per-hour", "3")
    _, error = lab.control(*order)
    assert "1 more actions postponed: the limit is 3 per hour" in error + _
    changed = lab.begun("priority")
    assert len(changed) == 3
    lab.control(*order)
    assert lab.begun("priority") == changed
    lab.slurm.run("scontrol", "update", f"jobid={changed[0]}", "priority=77")
    running = lab.start("slurm", "--apply", "--log", str(lab.log), "--json")
    assert running.stdout is not None
    running.stdout.readline()
    _, error = lab.flatout("undo", str(lab.log), "--apply", code=2)
    assert f"error: {lab.log} is in use by another controller\n" in error
    running.terminate()
    running.communicate()
    out, error = lab.flatout("undo", str(lab.log))
    assert out.count("would set priority") == 2 and "nothing was changed" in error
    out, _ = lab.flatout("undo", str(lab.log), "--apply")
    assert f"skipped priority of {changed[0]}: it is now 77, not " in out
    after = {job: lab.jobs()[job]["priority"] for job in jobs}
    assert after == before | {changed[0]: 77}
    out, _ = lab.flatout("undo", str(lab.log), "--apply")
    assert out.count("\n") == 1  # the skipped one again, and nothing is undone twice


def test_a_slurmctld_that_does_not_answer_is_waited_for(lab: Lab) -> None:
    controller = lab.start("slurm", "--interval", "1", "--timeout", "1", "--json")
    assert controller.stdout is not None and controller.stderr is not None
    controller.stdout.readline()
    lab.slurm.pause()
    try:
        lines = iter(controller.stderr.readline, "")
        assert any("did not answer in 1 s; trying again in 1 s" in line for line in lines)
        _, error = lab.flatout("slurm", "--once", "--timeout", "1", code=2)
        assert error == "error: `scontrol` did not answer in 1 s\n"
    finally:
        lab.slurm.resume()
    controller.stdout.readline()
    controller.terminate()
    controller.communicate()
