"""What each failure is taken for, and what is done about it."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.change.launchers import launch_value
from flatout.keep.evidence import Evidence, Failure, read_failures
from flatout.keep.hosts import goes_on_without_host, without_host
from flatout.keep.previous_runs import PreviousRuns
from flatout.keep.redact import redactor
from flatout.keep.rules import RULES, Judgement, judge
from flatout.keep.supervise import Restarts


def failed(exception: str, message: str, **changes: Any) -> Failure:
    base: dict[str, Any] = {"rank": 1, "hostname": "host", "pid": 9, "unix_s": 1.0, "kind": "error", "where": None}
    return Failure(**{**base, "exception": exception, "message": message, "line": "train.py:7", **changes})


def evidence(**changes: Any) -> Evidence:
    return Evidence(**{"code": 1, "signal": None, "num_ranks": 2, "num_steps": 10, "step": 10, **changes})


CASES = [
    ("asked-to-end", False, "nobody", evidence(was_asked_to_end=True, code=None, signal=15)),
    ("done", False, "nobody", evidence(code=0)),
    ("gpu-failure", True, "machine", evidence(xids=(79,))),
    (
        "gpu-failure",
        True,
        "machine",
        evidence(failures=(failed("RuntimeError", "CUDA error: uncorrectable ECC error"),)),
    ),
    ("lost-node", True, "machine", evidence(cause="void", reason="a node failed")),
    ("host-out-of-memory", True, "user", evidence(num_oom_kills=1, killed=(1,))),
    ("host-out-of-memory", True, "user", evidence(cause="out_of_memory")),
    (
        "gpu-out-of-memory",
        True,
        "user",
        evidence(failures=(failed("OutOfMemoryError", "CUDA out of memory", kind="out_of_memory", where="device"),)),
    ),
    ("full-disk", False, "user", evidence(failures=(failed("OSError", "[Errno 28] No space left on device"),))),
    (
        "full-disk",
        False,
        "user",
        evidence(failures=(failed("CheckpointError", "ckpt cannot be written to: No space left on device"),)),
    ),
    ("unwritable", False, "user", evidence(failures=(failed("OSError", "[Errno 30] Read-only file system: 'x'"),))),
    ("exception", True, "user", evidence(failures=(failed("RuntimeError", "permission denied by the fabric"),))),
    ("locked", False, "user", evidence(failures=(failed("LockedError", "ckpt is written to by another job"),))),
    ("refused-checkpoint", False, "user", evidence(num_steps=0, failures=(failed("CheckpointError", "no `model`"),))),
    ("exception", True, "user", evidence(failures=(failed("CheckpointError", "rank 1 could not write its part"),))),
    ("arguments", False, "user", evidence(num_steps=0, failures=(failed("SystemExit", "train.py: no --steps"),))),
    ("exception", True, "user", evidence(num_steps=0, failures=(failed("SystemExit", "no data", kind="exit"),))),
    ("gpu-fault", True, "user", evidence(xids=(31,))),
    (
        "gpu-fault",
        True,
        "user",
        evidence(failures=(failed("RuntimeError", "CUDA error: device-side assert triggered"),)),
    ),
    ("mistake", False, "user", evidence(num_steps=0, failures=(failed("ImportError", "no"),))),
    (
        "mistake",
        False,
        "user",
        evidence(num_steps=0, failures=(failed("TabError", "no", has_torch=False, age_s=99.0),)),
    ),
    ("mistake", False, "user", evidence(num_steps=0, failures=(failed("KeyError", "no", has_torch=False, age_s=9.0),))),
    (
        "exception",
        True,
        "user",
        evidence(num_steps=0, failures=(failed("KeyError", "no", has_torch=False, age_s=99.0),)),
    ),
    ("exception", True, "user", evidence(num_steps=0, failures=(failed("KeyError", "no", has_torch=False),))),
    ("exception", True, "user", evidence(failures=(failed("ImportError", "no"),))),
    ("exception", True, "user", evidence(num_steps=0, failures=(failed("OSError", "stale file handle"),))),
    ("killed", True, "unknown", evidence(killed=(1,))),
    ("killed", True, "unknown", evidence(killed=(1,), failures=(failed("RuntimeError", "Connection closed by peer"),))),
    ("communication", True, "network", evidence(failures=(failed("DistBackendError", "Socket Timeout"),))),
    ("rendezvous", True, "network", evidence(num_steps=0, failures=(failed("RendezvousClosedError", ""),))),
    ("usage", False, "user", evidence(num_steps=0, code=2)),
    ("signal", True, "unknown", evidence(code=None, signal=11)),
    ("exit-code", True, "unknown", evidence(code=3)),
]


@pytest.mark.parametrize(
    ("rule", "restarts", "fault", "found"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_failure_is_taken_for_what_it_is(rule: str, restarts: bool, fault: str, found: Evidence) -> None:
    judgement = judge(found)
    assert (judgement.rule, judgement.restarts, judgement.fault) == (rule, restarts, fault)
    assert judgement.says and "\n" not in judgement.says


def test_every_rule_has_a_case_here_but_that_of_hangs() -> None:
    assert {rule.name for rule in RULES} == {rule for rule, *_ in CASES} | {"hang"}


def test_what_ranks_say_of_a_peer_that_went_away_comes_after_the_cause(tmp_path: Any) -> None:
    import msgspec

    peer = failed("RuntimeError", "[../gloo/pair.cc] Connection closed by peer", rank=0, unix_s=1.0)
    cause = failed("ValueError", "a bad batch", rank=1, unix_s=2.0)
    for number, one in enumerate((peer, cause)):
        (tmp_path / f"failure-host-{number}.json").write_bytes(msgspec.json.encode(one))
    (tmp_path / "failure-host-3.json").write_text("{")
    found = read_failures(tmp_path)
    assert [one.rank for one in found] == [1, 0]
    assert judge(evidence(failures=found)).says == "rank 1 raised ValueError at train.py:7: a bad batch"


def test_the_same_failure_at_the_same_step_twice_stops_whatever_the_budget() -> None:
    restarts = Restarts(10)
    bug = judge(evidence(failures=(failed("ValueError", "bad value 0x7f01"),)))
    again = judge(evidence(failures=(failed("ValueError", "bad value 0x7faa"),)))
    assert restarts.decide(bug, 10).restarts
    assert restarts.decide(again, 20).restarts, "at another step it may be another one"
    last = restarts.decide(again, 10)
    assert not last.restarts and "the same failure at step 10 for the second time" in last.why


def test_a_job_whose_steps_are_not_seen_has_its_whole_budget() -> None:
    restarts = Restarts(3)
    ended = judge(evidence(code=3))
    assert [restarts.decide(ended, None).restarts for _ in range(4)] == [True, True, True, False]


def test_a_job_that_twice_ends_in_the_same_way_before_a_rank_is_seen_does_not_spend_its_budget() -> None:
    broken, other = judge(evidence(code=1)), judge(evidence(code=3))

    def started(*attempts: tuple[Judgement, float | None], earlier: PreviousRuns | None = None) -> list[bool]:
        restarts = Restarts(9, earlier=earlier)
        return [restarts.decide(judgement, None, silent_s=silent_s).restarts for judgement, silent_s in attempts]

    assert started((broken, 3.0), (broken, 3.0)) == [True, False]
    assert started((broken, 3.0), (other, 3.0), (broken, 3.0), (broken, 3.0)) == [True, True, True, False]
    assert all(started(*[(broken, 40.0)] * 3)), "it may have trained in that time"
    assert all(started((broken, 40.0), *[(broken, 3.0)] * 3)), "it has once run: what it lacks may come back"
    assert all(started((broken, None), *[(broken, 3.0)] * 3)), "ranks were seen"
    assert all(started(*[(judge(evidence(signal=9, code=None)), 3.0)] * 3)), "somebody kills it"
    before = PreviousRuns(num_starts=1, num_restarts=0, failures=frozenset(), farthest=9, saved=9, last_unix_s=0.0)
    assert all(started(*[(broken, 3.0)] * 3, earlier=before))


def test_the_budget_is_kept_and_pauses_grow_while_nothing_is_gained() -> None:
    restarts = Restarts(3)
    killed = judge(evidence(killed=(1,)))
    decisions = [restarts.decide(killed, step) for step in (10, 5, 4, 30)]
    assert [decision.restarts for decision in decisions] == [True, True, True, False]
    assert [decision.pause_s for decision in decisions[:3]] == [1.0, 2.0, 4.0]
    assert "all 3 restarts are used" in decisions[3].why


def test_host_names_are_masked_and_words_that_contain_them_are_not() -> None:
    clean = redactor({"SLURM_JOB_NODELIST": "gpu[01-03],login", "MASTER_ADDR": "10.0.0.7", "HOSTNAME": "me.site.org"})
    masked = clean("gpu02 gpu021 me.site.org me login logins 10.0.0.7 name me-2")
    words = masked.split()
    assert words[1] == "gpu021" and words[5] == "logins" and words[7] == "name"
    assert all(word.startswith("host-") for word in (words[0], words[2], words[3], words[4], words[6]))
    assert words[2] == words[3] != words[0]


@pytest.mark.parametrize(
    ("command", "elastic"),
    [
        ("torchrun --nnodes=2:4 train.py", True),
        ("python -m torch.distributed.run --nnodes 1:8 train.py", True),
        ("torchrun --nnodes=4 train.py", False),
        ("torchrun --nnodes=4:4 train.py", False),
        ("python train.py --nnodes=2:4", False),
    ],
)
def test_an_elastic_launcher_goes_on_without_a_host_whose_gpu_failed(command: str, elastic: bool) -> None:
    assert goes_on_without_host(launch_value(command.split(), "torchrun", "--nnodes", {})) is elastic
    decision = Restarts(3, others_go_on=elastic).decide(judge(evidence(xids=(79,))), 10)
    assert decision.restarts is not elastic


def test_srun_takes_a_spare_node_of_its_allocation_and_none_that_is_not_there() -> None:
    spare = {"SLURM_JOB_NUM_NODES": "4"}
    command = ["srun", "-N2", "--ntasks-per-node=8", "python", "train.py"]
    once = without_host(command, "gpu2", spare)
    assert once == ("srun", "--exclude=gpu2", *command[1:])
    twice = without_host(once or (), "gpu1", spare)
    assert twice == ("srun", "--exclude=gpu1,gpu2", *command[1:])
    assert without_host(twice or (), "gpu3", spare) is None
    assert without_host(command, "gpu2", {}) is None
    assert without_host(["torchrun", "train.py"], "gpu2", spare) is None


def test_whom_the_launcher_took_down_makes_no_other_failure_of_it() -> None:
    restarts = Restarts(5)
    bug = failed("ValueError", "a bad batch")
    assert restarts.decide(judge(evidence(failures=(bug,), killed=(0,))), 10).restarts
    assert not restarts.decide(judge(evidence(failures=(bug,))), 10).restarts


MEETING = {
    name: judge(evidence(num_steps=0, step=None, failures=(failed(f"Rendezvous{name}Error", "x"),)))
    for name in ("Closed", "Connection", "Timeout")
}


def test_waiting_for_another_nodes_agent_spends_no_restart_but_for_ten_minutes() -> None:
    now = 0.0
    restarts = Restarts(2, clock=lambda: now)
    for name in ("Closed", "Connection") * 20:
        assert restarts.decide(MEETING[name], None).restarts
        now += 10.0
    assert restarts.num == 0
    now = 601.0
    assert [restarts.decide(MEETING["Connection"], None).restarts for _ in range(3)] == [True, True, False]
    assert not Restarts(0).decide(MEETING["Closed"], None).restarts, "nobody asked for any"


def test_an_agent_that_has_waited_for_all_of_torchruns_time_spends_one() -> None:
    restarts = Restarts(2)
    assert [restarts.decide(MEETING["Timeout"], None).restarts for _ in range(3)] == [True, True, False]


def test_an_elastic_job_does_without_a_node_that_fails_three_times_in_a_row_and_not_with_one_that_lost_its_peers() -> (
    None
):
    killed, lost = judge(evidence(killed=(1,))), judge(evidence(failures=(failed("RuntimeError", "Broken pipe"),)))
    assert lost.is_of_peers and not killed.is_of_peers
    failing, other = Restarts(9, others_go_on=True), Restarts(9, others_go_on=True)
    decisions = [failing.decide(killed, step) for step in (10, 20, 30)]
    assert [one.restarts for one in decisions] == [True, True, False]
    assert decisions[-1].why == "this host failed 3 times in a row: the launcher is elastic, and the others continue"
    assert all(other.decide(lost, step).restarts for step in (10, 20, 30, 30, 30)), "who fails is left out by itself"
    between = Restarts(9, others_go_on=True)
    assert all(between.decide(one, step).restarts for step, one in enumerate([killed, killed, lost, killed, killed]))


def test_a_machine_at_fault_is_told_to_the_scheduler_where_that_is_asked_for() -> None:
    broken, killed = judge(evidence(xids=(79,))), judge(evidence(killed=(1,)))
    told = Restarts(3, machine_code=75).decide(broken, 10)
    assert not told.restarts and told.goes_on and "code 75" in told.why
    assert Restarts(3, machine_code=75).decide(killed, 10).restarts
    assert Restarts(3).decide(broken, 10).restarts
