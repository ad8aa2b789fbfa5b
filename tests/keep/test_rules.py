"""What each failure is taken for, and what is done about it."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.catalog.failures import known_failures
from flatout.change.launchers import launch_value
from flatout.keep.error_text import RaisedError
from flatout.keep.evidence import Evidence, Failure, FreeSpace, read_failures
from flatout.keep.exits import RankExit
from flatout.keep.hosts import goes_on_without_host, without_host
from flatout.keep.previous_runs import PreviousRuns
from flatout.keep.redact import redactor
from flatout.keep.rules import RULES, Judgement, judge
from flatout.keep.stacks import Frame, Stack
from flatout.keep.supervise import Restarts, SuspectedHosts


def failed(exception: str, message: str, **changes: Any) -> Failure:
    base: dict[str, Any] = {"rank": 1, "hostname": "host", "pid": 9, "unix_s": 1.0, "kind": "error", "where": None}
    return Failure(**{**base, "exception": exception, "message": message, "line": "train.py:7", **changes})


def evidence(**changes: Any) -> Evidence:
    return Evidence(**{"code": 1, "signal": None, "num_ranks": 2, "num_steps": 10, "step": 10, **changes})


def left(**changes: Any) -> RankExit:
    return RankExit(**{"rank": 1, "hostname": "host", "at_s": 1.0, "step": 12, "is_orderly": True, **changes})


PEER_GONE = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:33692."
WORKER_GONE = "DataLoader worker (pid(s) 10306) exited unexpectedly"
DUPLICATE_GPU = (
    "NCCL error in: NCCLUtils.hpp:268, invalid usage\nncclInvalidUsage: This usually reflects invalid usage of NCCL.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
)
IN_BROADCAST = Stack(
    pid=9,
    frames=(
        Frame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2730, "broadcast"),
        Frame("/home/me/train.py", 47, "fault"),
    ),
    text="",
)
ABORTED = left(signal=6, is_orderly=False, stack=IN_BROADCAST)
CASES = [
    ("asked-to-end", False, "nobody", evidence(was_asked_to_end=True, code=None, signal=15)),
    ("done", False, "nobody", evidence(code=0)),
    ("gpu-failure", True, "machine", evidence(xids=(79,))),
    ("gpu-ecc", True, "machine", evidence(failures=(failed("RuntimeError", "CUDA error: uncorrectable ECC error"),))),
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
    ("files", True, "user", evidence(failures=(failed("CheckpointError", "rank 1 could not write its part"),))),
    ("arguments", False, "user", evidence(num_steps=0, failures=(failed("SystemExit", "train.py: no --steps"),))),
    ("own-exit-text", True, "user", evidence(num_steps=0, failures=(failed("SystemExit", "no data", kind="exit"),))),
    ("gpu-fault", True, "user", evidence(xids=(31,))),
    ("gpu-fault", True, "user", evidence(failures=(failed("RuntimeError", "CUDA error: misaligned address"),))),
    # An index or a label that is out of range is so in the next attempt too.
    (
        "gpu-assert",
        False,
        "user",
        evidence(failures=(failed("RuntimeError", "CUDA error: device-side assert triggered"),)),
    ),
    ("import", False, "user", evidence(num_steps=0, failures=(failed("ImportError", "no"),))),
    (
        "import",
        False,
        "user",
        evidence(num_steps=0, failures=(failed("TabError", "no", has_torch=False, age_s=99.0),)),
    ),
    ("mistake", False, "user", evidence(num_steps=0, failures=(failed("KeyError", "no", has_torch=False, age_s=9.0),))),
    (
        "mistake",
        True,
        "user",
        evidence(num_steps=0, failures=(failed("KeyError", "no", has_torch=False, age_s=99.0),)),
    ),
    ("mistake", True, "user", evidence(num_steps=0, failures=(failed("KeyError", "no", has_torch=False),))),
    ("import", False, "user", evidence(failures=(failed("ImportError", "no"),))),  # missing at each start
    ("storage-server", True, "network", evidence(failures=(failed("OSError", "[Errno 116] Stale file handle"),))),
    ("files", True, "user", evidence(num_steps=0, failures=(failed("OSError", "stale file handle"),))),
    ("exception", False, "user", evidence(num_steps=0, failures=(failed("RuntimeError", "odd"),))),
    (
        "loader-timeout",
        True,
        "unknown",
        evidence(failures=(failed("RuntimeError", "DataLoader timed out after 5.0 seconds"),)),
    ),
    ("killed", True, "unknown", evidence(killed=(1,))),
    ("killed", True, "unknown", evidence(killed=(1,), failures=(failed("RuntimeError", "Connection closed by peer"),))),
    ("peers-did-not-come", True, "unknown", evidence(failures=(failed("DistBackendError", "Socket Timeout"),))),
    ("gloo-peer-gone", True, "unknown", evidence(failures=(failed("RuntimeError", PEER_GONE),))),
    ("rendezvous", True, "network", evidence(num_steps=0, failures=(failed("RendezvousConnectionError", ""),))),
    ("rendezvous-closed", True, "unknown", evidence(num_steps=0, failures=(failed("RendezvousClosedError", ""),))),
    ("duplicate-gpu", False, "user", evidence(num_steps=0, failures=(failed("DistBackendError", DUPLICATE_GPU),))),
    (
        "gpu-out-of-memory",
        True,
        "user",
        evidence(failures=(failed("Custom", "x", kind="out_of_memory", where="device"),)),
    ),
    ("left-early", False, "user", evidence(failures=(failed("RuntimeError", PEER_GONE),), left=left(code=0))),
    ("rank-exit", True, "unknown", evidence(failures=(failed("RuntimeError", PEER_GONE),), left=left(code=3))),
    ("rank-exit", True, "unknown", evidence(left=left(code=3, is_orderly=False))),
    ("crash", True, "unknown", evidence(left=left(signal=11, is_orderly=False))),
    ("shared-memory-full", False, "user", evidence(left=left(signal=7, is_orderly=False))),
    ("mismatched-collectives", False, "user", evidence(failures=(failed("RuntimeError", PEER_GONE),), left=ABORTED)),
    ("aborted-in-collective", True, "unknown", evidence(left=ABORTED)),
    ("host-out-of-memory", True, "user", evidence(num_oom_kills=1, failures=(failed("RuntimeError", WORKER_GONE),))),
    ("crash", True, "unknown", evidence(num_oom_kills=0, failures=(failed("RuntimeError", WORKER_GONE),))),
    ("asked-to-end", False, "nobody", evidence(was_warned=True, code=None, signal=10)),
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
    by_words = {known.name for known in known_failures()}
    assert {rule.name for rule in RULES} - {rule for rule, *_ in CASES} == {"hang"}
    assert {rule for rule, *_ in CASES} - {rule.name for rule in RULES} <= by_words


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
    assert not last.restarts and "the same failure at step 10 occurred for the second time" in last.why


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
    assert "all 3 restarts are used up" in decisions[3].why


def test_host_names_are_masked_and_words_that_contain_them_are_not() -> None:
    clean = redactor({"SLURM_JOB_NODELIST": "gpu[01-03],login", "MASTER_ADDR": "10.0.0.7", "HOSTNAME": "me.site.org"})
    masked = clean("gpu02 gpu021 me.site.org me login logins 10.0.0.7 name me-2")
    words = masked.split()
    assert words[1] == "gpu021" and words[5] == "logins" and words[7] == "name"
    assert all(word.startswith("host-") for word in (words[0], words[2], words[3], words[4], words[6]))
    assert words[2] == words[3] != words[0]


def test_a_host_list_of_many_numbers_is_read_and_one_without_bound_is_not_expanded() -> None:
    clean = redactor({"SLURM_JOB_NODELIST": "rack[1-2]-gpu[01-03]"})
    assert clean("rack2-gpu03 rack1-gpu01").split() == ["host-7", "host-2"]
    for pattern in ("gpu[0-999999999]", "gpu[1-3", "gpu[x]", "gpu[1-" + "9" * 5000 + "]"):
        assert redactor({"SLURM_JOB_NODELIST": pattern})("gpu7") == "gpu7"


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


def meeting(name: str) -> Judgement:
    return judge(evidence(num_steps=0, step=None, failures=(failed(f"Rendezvous{name}Error", "x"),)))


def test_waiting_for_another_nodes_agent_spends_no_restart_but_for_ten_minutes() -> None:
    now = 0.0
    restarts = Restarts(2, clock=lambda: now)
    for name in ("Closed", "Connection") * 20:
        assert restarts.decide(meeting(name), None).restarts
        now += 10.0
    assert restarts.num == 0
    now = 601.0
    assert [restarts.decide(meeting("Connection"), None).restarts for _ in range(3)] == [True, True, False]
    assert not Restarts(0).decide(meeting("Closed"), None).restarts, "nobody asked for any"


def test_an_agent_that_has_waited_for_all_of_torchruns_time_spends_one() -> None:
    restarts = Restarts(2)
    assert [restarts.decide(meeting("Timeout"), None).restarts for _ in range(3)] == [True, True, False]


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


def test_a_rank_that_ended_itself_comes_before_the_complaints_of_its_peers_and_after_a_real_error() -> None:
    complaint = failed("RuntimeError", PEER_GONE, rank=0)
    said = judge(evidence(failures=(complaint,), left=left(code=3)))
    assert said.says == "rank 1 left first, after 12 steps: its script ended itself with exit code 3"
    bug = failed("ValueError", "a bad batch", rank=0)
    assert judge(evidence(failures=(bug,), left=left(code=3))).rule == "mistake"
    early = judge(evidence(failures=(complaint,), left=left(code=0)))
    assert "rank 1 left first, after 12 steps: its script ended with exit code 0 while other ranks still" in early.says
    at_once = judge(evidence(left=left(code=3, is_orderly=False, last_lines=("bye",))))
    assert "at once with exit code 3" in at_once.says and at_once.says.endswith("standard error: bye")


@pytest.mark.parametrize(
    ("has_native_lines", "is_orderly", "is_unknown"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_what_native_code_wrote_is_unknown_without_a_file(
    has_native_lines: bool, is_orderly: bool, is_unknown: bool
) -> None:
    rank = left(signal=None if is_orderly else 6, code=3 if is_orderly else None, is_orderly=is_orderly)
    said = judge(evidence(left=rank, has_native_lines=has_native_lines)).says
    assert ("what native code wrote last is unknown" in said) == is_unknown


def test_the_last_lines_of_a_rank_that_ends_without_a_word_are_its_words() -> None:
    aborted = left(signal=6, is_orderly=False, last_lines=("CUDA error: uncorrectable ECC error encountered",))
    assert judge(evidence(left=aborted)).rule == "gpu-ecc"
    printed = left(code=1, last_lines=("Loss is nan, stopping training",))
    assert (judge(evidence(left=printed)).failure_class, judge(evidence(left=printed)).restart) == ("job", "no")
    native = ("terminate called after throwing an instance", "op.preamble.length <= op.nbytes. 512 vs 12.")

    def rule_of(*lines: str) -> str:
        return judge(evidence(left=left(signal=6, is_orderly=False), last_lines=lines)).rule

    assert rule_of(*native) == "mismatched-collectives"
    # What torchrun writes about all ranks follows, and is longer the more there are.
    assert rule_of(*native, *_report_of_torchrun(16)) == "mismatched-collectives"
    assert rule_of(*native, *["saved a checkpoint"] * 79) == "mismatched-collectives"
    assert rule_of(*native, *["saved a checkpoint"] * 80) == "crash", "it was written long ago"
    regular = left(code=0, last_lines=("No space left on device",))
    assert judge(evidence(failures=(failed("RuntimeError", PEER_GONE),), left=regular)).rule == "left-early"


def test_the_whole_chain_of_an_exception_counts_and_the_space_that_was_left_is_told() -> None:
    full = failed(
        "RuntimeError",
        "the checkpoint is incomplete",
        chain=(RaisedError(exception="OSError", message="[Errno 28] No space left on device"),),
        space=FreeSpace(folder="/ckpt", free_bytes=4096, shm_free_bytes=2**30),
    )
    judgement = judge(evidence(failures=(full,)))
    assert (judgement.rule, judgement.restart) == ("full-disk", "no")
    assert judgement.says == (
        "the disk is full: rank 1 raised RuntimeError at train.py:7: the checkpoint is incomplete; the cause: OSError: "
        "[Errno 28] No space left on device; 4.00 KiB free in /ckpt"
    )
    assert judgement.way_out is not None


def test_what_nccl_says_of_its_last_error_is_told() -> None:
    judgement = judge(evidence(num_steps=0, failures=(failed("DistBackendError", DUPLICATE_GPU),)))
    assert "(NCCL's last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000)" in judgement.says


def test_with_room_in_shared_memory_a_bus_error_is_something_else() -> None:
    def judged(shm_free_bytes: int) -> str:
        space = FreeSpace(folder="/", free_bytes=0, shm_free_bytes=shm_free_bytes)
        complaint = failed("RuntimeError", PEER_GONE, rank=0, space=space)
        return judge(evidence(failures=(complaint,), left=left(signal=7, is_orderly=False))).rule

    assert judged(64 * 2**20 - 1) == "shared-memory-full"
    assert judged(64 * 2**20) == "crash"


def test_an_xid_that_only_records_something_blames_nobody() -> None:
    assert judge(evidence(xids=(63,), code=3)).rule == "exit-code"
    assert judge(evidence(xids=(63, 79))).rule == "gpu-failure"


@pytest.mark.parametrize(
    ("found", "is_bad"),
    [
        (evidence(killed=(1,)), True),
        (evidence(failures=(failed("ValueError", "a bad batch"),)), False),
        (evidence(num_oom_kills=1, killed=(1,)), False),
        (evidence(failures=(failed("RuntimeError", PEER_GONE),)), False),
    ],
)
def test_a_host_is_suspected_at_the_second_failure_unless_the_job_is_at_fault(found: Evidence, is_bad: bool) -> None:
    hosts, judgement = SuspectedHosts(), judge(found)
    assert hosts.bad("n1", judgement) is None
    assert (hosts.bad("n1", judgement) is not None) is is_bad


def _report_of_torchrun(num_ranks: int) -> list[str]:
    """Return what torchrun writes on standard error after a rank was aborted."""
    lines = ["E1130 03:15:15.499000 1138 api.py:1002] failed (exitcode: -6) local_rank: 1 (pid: 1306) of binary: x"]
    lines += ["Traceback (most recent call last):", *['  File "run.py", line 1028, in main', "    run(args)"] * 6]
    lines += ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 54, "train.py FAILED"]
    lines += ["-" * 54, "Failures:"]
    for rank in range(num_ranks):
        lines += [f"[rank{rank + 2}]: RuntimeError: Connection closed by peer"] * 8
        lines += [f"[{rank}]:", "  time      : 2026-11-30_03:15:15", "  host      : localhost"]
        lines += [f"  rank      : {rank}", "  exitcode  : -15 (pid: 1305)  (SIGTERM)", "  error_file: <N/A>"]
        lines.append("  traceback : Signal 15 (SIGTERM) received by PID 1305")
    return [*lines, "-" * 54, "Root Cause (first observed failure):", "[0]:", "=" * 54]


def test_a_rank_that_gloo_aborts_at_the_line_of_the_others_had_another_shape() -> None:
    assert ABORTED.stack is not None
    line = str(ABORTED.stack.user_frame()).partition(" ")[0]
    of_gloo = failed("RuntimeError", PEER_GONE, line=line)
    same_line = judge(evidence(failures=(of_gloo,), left=ABORTED))
    assert (same_line.rule, same_line.restart) == ("mismatched-collectives", "no")
    assert "with different shapes" in same_line.says
    of_nccl = failed("DistBackendError", "NCCL error: remote process exited or there was a network error", line=line)
    unknown = judge(evidence(failures=(of_nccl,), left=ABORTED))
    assert (unknown.rule, unknown.restart) == ("aborted-in-collective", "yes")
    assert "gloo does so if the ranks call different collectives or shapes" in unknown.says
