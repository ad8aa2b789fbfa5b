"""Slurm's output of several versions -> the same records; what is no such output is refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import InputError
from flatout.schedule.live.durations import EndedJobs
from flatout.schedule.live.hostlist import expanded
from flatout.schedule.live.slurm_read import read_failures, read_jobs, read_nodes
from flatout.schedule.live.view import JobView, NodeFailure

# As `squeue --json` of 22.05 gives them, without the fields that are not read.
RUNNING: dict[str, Any] = {
    "job_id": 1,
    "job_state": "RUNNING",
    "nodes": "n[1-2]",
    "gres_detail": ["gpu:h100:8(IDX:0-7)", "gpu:h100:3(IDX:0,2-3)"],
    "job_resources": {
        "allocated_nodes": [
            {"sockets": {"0": {"cores": {"0": "allocated", "1": "allocated"}}}, "nodename": "n1"},
            {"sockets": {"0": {"cores": {"0": "allocated"}}}, "nodename": "n2"},
        ]
    },
    "user_name": "ann",
    "partition": "low",
    "priority": 4294901759,
    "node_count": 2,
    "cpus": 3,
    "requeue": True,
    "batch_flag": True,
    "restart_cnt": 1,
    "state_reason": "None",
    "submit_time": 1795862336,
    "start_time": 1795862337,
    "time_limit": 60,
    "tres_per_node": "gres:gpu:8",
    "comment": "hello",
}
PENDING: dict[str, Any] = {
    **RUNNING,
    "job_id": 2,
    "job_state": "PENDING",
    "nodes": "",
    "gres_detail": [],
    "job_resources": {},
    "start_time": 0,
    "state_reason": "Resources",
    "tres_per_node": "gres:gpu:h100:4",
    "excluded_nodes": "n[7,9]",
}


def read(*entries: dict[str, Any]) -> list[JobView]:
    return list(read_jobs(json.dumps({"meta": {}, "errors": [], "jobs": entries}).encode()))


def one(**changed: Any) -> JobView:
    return read({**PENDING, **changed})[0]


def test_a_running_job() -> None:
    assert read(RUNNING) == [
        JobView(
            id="1",
            state="running",
            user="ann",
            partition="low",
            submit_unix_s=1795862336,
            comment="hello",
            priority=4294901759,
            num_nodes=2,
            num_gpus=11,
            gpus_per_node=8,
            cpus=3,
            start_unix_s=1795862337,
            time_limit_s=3600,
            restarts=1,
            may_requeue=True,
            gpus_by_node={"n1": 8, "n2": 3},
            gpu_indices={"n1": tuple(range(8)), "n2": (0, 2, 3)},
            cpus_by_node={"n1": 2, "n2": 1},
        )
    ]


def test_later_versions_write_numbers_as_objects_and_states_as_lists() -> None:
    def number(value: int | None) -> dict[str, Any]:
        return {"set": value is not None, "infinite": False, "number": value or 0}

    for entry in (RUNNING, PENDING):
        later = dict(entry) | {
            name: number(entry[name]) for name in ("priority", "node_count", "cpus", "submit_time", "start_time")
        }
        later |= {"job_state": [entry["job_state"]], "time_limit": number(60)}
        later["tres_per_node"] = entry["tres_per_node"].replace("gres:", "gres/")
        assert read(later) == read(entry)
    unlimited = {"set": True, "infinite": True, "number": 0}
    assert one(time_limit=unlimited).time_limit_s is None


@pytest.mark.parametrize(
    ("asked", "num_gpus", "per_node"),
    [
        ({"tres_per_node": "gres:gpu:h100:4"}, 8, 4),
        ({"tres_per_node": "gres:gpu"}, 2, 1),
        ({"tres_per_node": "gres/gpu:h100:4,gres/gpu:a100:1"}, 10, 5),
        ({"tres_per_node": "", "tres_per_job": "gres:gpu:12"}, 12, None),
        ({"tres_per_node": "", "tres_per_task": "gres:gpu:2", "tasks": 3}, 6, None),
        ({"tres_per_node": "", "tres_req_str": "cpu=8,gres/gpu=16,gres/gpu:h100=16"}, 16, None),
        ({"tres_per_node": "", "tres_req_str": "cpu=8,gres/gpu:a100=2,gres/gpu:h100=16"}, 18, None),
        ({"tres_per_node": "", "tres_req_str": "cpu=8"}, 0, None),
        ({"tres_per_node": "gres:shard:4"}, 0, None),
    ],
)
def test_the_gpus_that_are_asked_for(asked: dict[str, Any], num_gpus: int, per_node: int | None) -> None:
    job = one(**asked)
    assert (job.num_gpus, job.gpus_per_node, job.gpus_by_node) == (num_gpus, per_node, {})


def test_which_pending_jobs_could_start() -> None:
    assert one().is_waiting
    assert one().excluded_nodes == ("n7", "n9")
    assert not one(priority=0).is_waiting and one(priority=0).is_held
    assert not one(state_reason="BeginTime").is_waiting
    assert not one(dependency="afterok:5").is_waiting
    assert one(job_state="COMPLETING", nodes="n1").state == "completing"
    assert one(job_state=["CANCELLED", "COMPLETING"]).state == "completing"
    assert one(job_state="NODE_FAIL").state == "ended"


def test_a_task_of_an_array_is_named_so_that_the_others_are_not_meant() -> None:
    assert one(job_id=5, array_job_id=5, array_task_id=3).id == "5_3"
    assert one(job_id=5, array_job_id=5, array_task_id=None, array_task_string="4-9%2").id == "5"
    later = {"set": False, "infinite": False, "number": 0}
    assert one(job_id=5, array_job_id={**later}, array_task_id=later).id == "5"


def test_jobs_that_are_not_batch_jobs_cannot_be_requeued() -> None:
    assert not one(batch_flag=False).may_requeue
    assert not one(requeue=False).may_requeue
    assert one(het_job_id=4).is_composite


def test_the_checkpoint_that_a_comment_names(tmp_path: Path) -> None:
    for name, unix_s in (("step1", 1795862340), ("step2", 1795862400)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (unix_s, unix_s))
    (job,) = read({**RUNNING, "comment": f"me checkpoint={tmp_path}"})
    assert job.last_checkpoint_unix_s == 1795862400
    assert job.lost_gpu_s(1795862410) == 10 * 11
    (job,) = read({**RUNNING, "comment": f"checkpoint={tmp_path}/none"})
    assert job.last_checkpoint_unix_s is None


def test_nodes() -> None:
    states = [
        ({"state": "idle", "state_flags": []}, (True, False, False)),
        ({"state": "mixed", "state_flags": ["DRAIN"]}, (False, False, True)),
        ({"state": "down", "state_flags": []}, (False, True, False)),
        ({"state": "down", "state_flags": ["NOT_RESPONDING", "DRAIN"]}, (False, True, True)),
        ({"state": ["IDLE", "DRAIN"]}, (False, False, True)),
        ({"state": ["ALLOCATED", "PLANNED"]}, (True, False, False)),
        ({"state": "idle", "state_flags": ["MAINTENANCE"]}, (False, False, False)),
        ({"state": ["IDLE", "CLOUD", "POWERED_DOWN"]}, (True, False, False)),
        ({"state": ["IDLE", "POWERING_DOWN"]}, (False, False, False)),
        ({"state": "DOWN*+DRAIN"}, (False, True, True)),
    ]
    for state, wanted in states:
        entry = {"name": "n1", "gres": "gpu:h100:8(S:0-1)", "cpus": 96, "partitions": ["low"], "reason": "x", **state}
        (node,) = read_nodes(json.dumps({"nodes": [entry]}).encode())
        assert (node.is_usable, node.is_down, node.is_drained) == wanted, state
        assert (node.name, node.num_gpus, node.num_cpus, node.partitions) == ("n1", 8, 96, ("low",))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"slurm_load_jobs error: x",
        b"[]",
        b"{}",
        b'{"jobs": {}}',
        b'{"jobs": [1]}',
        b'{"jobs": [{}]}',
        b'{"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "n[1-"}]}',
        b'{"jobs": [{"job_id": "x", "job_state": []}]}',
        b"\xff\xfe",
        b'{"jobs": [',
    ],
)
def test_what_is_no_list_of_jobs_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(InputError) as error:
        read_jobs(text)
    assert "squeue --json" in str(error.value) and "\n" not in str(error.value)


def test_a_name_that_is_no_utf8_is_read() -> None:
    text = json.dumps({"jobs": [{**RUNNING, "name": "caf@"}]}).encode().replace(b"@", b"\xe9")
    assert read_jobs(text)[0].name == "caf\N{REPLACEMENT CHARACTER}"


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(sorted(RUNNING)), inner),
    max_leaves=8,
)


@given(VALUES, st.sampled_from(sorted(RUNNING)))
def test_any_value_in_any_field_is_read_or_refused(value: Any, field: str) -> None:
    said = ""
    try:
        assert len(read({**RUNNING, field: value})) == 1
    except InputError as error:
        said = str(error)
    assert "\n" not in said


def test_failures_are_shared_out_to_the_nodes_of_a_job() -> None:
    text = b"NODE_FAIL|1795862400|n[1-4]\nCOMPLETED|1795862400|n1\nNODE_FAIL|Unknown|n1\n"
    assert read_failures(text) == [NodeFailure(node=f"n{n}", unix_s=1795862400, weight=0.25) for n in (1, 2, 3, 4)]
    with pytest.raises(InputError, match="three fields"):
        read_failures(b"error: x\n")


def test_durations_of_the_same_name_then_of_the_same_user() -> None:
    header = "JobID|User|JobName|Partition|State|ElapsedRaw\n"
    rows = [f"{n}|ann|train_lr{n}|low|COMPLETED|{100 * n}" for n in (1, 2, 3)]
    rows += [f"{n}|ann|other|low|CANCELLED by 0|9999" for n in (4, 5, 6)]
    rows += ["10|bob|x|low|COMPLETED|²", "11|bob|x|low|COMPLETED|" + 10 * "9", "12|bob|x|low|COMPLETED|"]
    rows += ["7|ann|a name", "with a line break|low|COMPLETED|5", "8|bob|x|low|COMPLETED|7", "9|ann|eval|low|FAILED|8"]
    history = EndedJobs(header + "\n".join(rows), "sacct")
    assert history.num_jobs == 5
    assert EndedJobs(header + "1|a|x|low|COMPLETED|" + 9 * "9", "sacct").num_jobs == 1
    jobs = [one(job_id=n, user_name=u, name=name) for n, u, name in ((1, "ann", "train_lr9"), (2, "ann", "new"))]
    jobs.append(one(job_id=3, user_name="bob", name="x"))
    assert history.predicted(jobs) == {"1": 200.0, "2": 150.0}
    with pytest.raises(InputError, match="has no JobName"):
        EndedJobs("JobID|User\n1|x\n", "FILE")


def test_a_column_that_is_named_twice_moves_no_other() -> None:
    rows = "User|JobName|State|State|ElapsedRaw\nann|x|low|COMPLETED|60\nann|x|COMPLETED|60\n"
    history = EndedJobs(rows, "FILE")
    assert history.num_jobs == 1


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,07-08],login", ("n1", "n2", "n3", "n07", "n08", "login")),
        ("r[1-2]n[1-2]-ib", ("r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib")),
    ],
)
def test_lists_of_hosts(text: str, hosts: tuple[str, ...]) -> None:
    assert expanded(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n]1", "n[a-b]", "n[0-99999999]"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        expanded(text)
