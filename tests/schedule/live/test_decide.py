"""What a controller decides, without a scheduler."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from tests.schedule.live.made import NOW, cluster, node, pending, running

from flatout.schedule.live.actions import Action, sentence
from flatout.schedule.live.controller_state import ControllerState, state_from_log
from flatout.schedule.live.decide import ControllerSettings, decide
from flatout.schedule.live.log import LoggedAction
from flatout.schedule.live.orders import fifo, least_attained, qssf, shortest
from flatout.schedule.live.selectors import selectors
from flatout.schedule.live.view import ClusterView, NodeFailure

URGENT = ControllerSettings(urgent=selectors("--urgent", ["comment=*urgent*"]))
IDLE = ControllerSettings(reclaims_idle=True)


def told(view: ClusterView, settings: ControllerSettings, memory: ControllerState | None = None) -> list[str]:
    return [sentence(action) for action in decide(view, memory or ControllerState(), settings)]


def done(*actions: Action, unix_s: float = NOW - 60) -> list[LoggedAction]:
    return [
        LoggedAction(number=number, unix_s=unix_s, action=action, outcome="done")
        for number, action in enumerate(actions, 1)
    ]


def full(**more: Any) -> tuple[Any, ...]:
    return (running("1", {"a": 8}, **more), node("a"))


def test_an_urgent_job_that_does_not_fit_requeues_one_that_may_be() -> None:
    view = cluster(*full(), pending("9", comment="urgent"))
    assert told(view, URGENT) == [
        "requeue job 1 and hold it: urgent job 9 needs 8 GPUs; it ran 100 s on 8 GPUs and loses 100 s of it"
    ]


def test_jobs_that_are_not_to_be_touched_are_not() -> None:
    urgent = pending("9", comment="urgent")
    for more in (
        {"may_requeue": False},
        {"comment": "flatout-protected"},
        {"comment": "is urgent too"},
        {"is_composite": True},
        {"state": "completing"},
    ):
        assert told(cluster(*full(**more), urgent), URGENT) == []
    protected = msgspec.structs.replace(URGENT, protected=selectors("--protect", ["user=ann"]))
    assert told(cluster(*full(), urgent), protected) == []
    others = msgspec.structs.replace(URGENT, only=selectors("--only", ["partition=other"]))
    assert told(cluster(*full(), urgent), others) == []
    assert told(cluster(*full(), pending("9", comment="urgent", is_held=True, priority=0)), URGENT) == []
    assert told(cluster(*full(), pending("9", comment="urgent", is_dependent=True)), URGENT) == []


def test_room_is_made_once_and_for_two_jobs_at_different_places() -> None:
    jobs = [running("1", {"a": 8}), running("2", {"b": 8}), node("a"), node("b")]
    view = cluster(*jobs, pending("8", comment="urgent"), pending("9", comment="urgent"))
    actions = decide(view, ControllerState(), URGENT)
    assert {(action.target, action.cause) for action in actions} == {("1", "8"), ("2", "9")}
    assert decide(view, state_from_log(done(*actions), (), NOW), URGENT) == []


def test_no_room_is_made_for_a_job_that_waits_for_something_else() -> None:
    for reason in ("AssocGrpGRES", "Licenses", "QOSMaxJobsPerUserLimit", "ReqNodeNotAvail"):
        assert told(cluster(*full(), pending("9", comment="urgent", reason=reason)), URGENT) == []
    assert len(told(cluster(*full(), pending("9", comment="urgent", reason="Priority")), URGENT)) == 1


def test_a_free_node_is_one_jobs_only() -> None:
    jobs = (running("1", {"a": 8}), node("a"), node("b"))
    view = cluster(*jobs, pending("8", comment="urgent"), pending("9", comment="urgent"))
    assert [(action.target, action.cause) for action in decide(view, ControllerState(), URGENT)] == [("1", "9")]


def test_what_slurm_refused_was_not_done() -> None:
    view = cluster(*full(), pending("9", comment="urgent"))
    action = decide(view, ControllerState(), URGENT)[0]
    memory = state_from_log([LoggedAction(number=1, unix_s=NOW - 5, action=action, outcome="failed")], (), NOW)
    assert (memory.holds, memory.num_preemptions, memory.num_actions_last_hour) == ({}, {}, 1)
    assert decide(view, memory, URGENT) == [action]


def test_a_job_is_not_requeued_for_ever() -> None:
    view = cluster(*full(), pending("9", comment="urgent"))
    action = decide(view, ControllerState(), URGENT)[0]
    before = [msgspec.structs.replace(action, cause=str(number)) for number in range(3)]
    memory = state_from_log(done(*before), (), NOW)
    assert memory.num_preemptions == {"1": 3}
    assert decide(view, memory, URGENT) == []


def test_a_victim_is_released_when_the_other_has_started_or_never_does() -> None:
    view = cluster(*full(), pending("9", comment="urgent"))
    entries = done(*decide(view, ControllerState(), URGENT), unix_s=NOW - 100)
    held = pending("1", is_held=True, priority=0, reason="JobHeldAdmin")
    waits = cluster(held, pending("9", comment="urgent"), node("a", is_usable=False))
    assert told(waits, URGENT, state_from_log(entries, (), NOW)) == []
    started = cluster(held, running("9", {"a": 8}), node("a"))
    assert told(started, URGENT, state_from_log(entries, (), NOW)) == [
        "release job 1: job 9, for which it was requeued, has started"
    ]
    gone = cluster(held, node("a"))
    assert told(gone, URGENT, state_from_log(entries, (), NOW)) == [
        "release job 1: job 9, for which it was requeued, is gone"
    ]
    entries = done(*(entry.action for entry in entries), unix_s=NOW - 1000)
    assert told(waits, URGENT, state_from_log(entries, (), NOW)) == [
        "release job 1: it was held for 17 min, and job 9 still waits (Resources)"
    ]
    free = cluster(pending("1"), running("9", {"a": 8}), node("a"))
    assert told(free, URGENT, state_from_log(entries, (), NOW)) == []  # somebody else has released it


def test_idle_gpus_are_reclaimed_only_where_a_job_waits_for_them() -> None:
    jobs = (running("1", {"a": 8}), running("2", {"b": 8}, ran_s=10), node("a"), node("b"))
    idle = {"idle_for_s": {"1": 1800.0}}
    assert told(cluster(*jobs, **idle), IDLE) == []
    assert told(cluster(*jobs, pending("9", nodes=2), **idle), IDLE) == []  # it would not be enough
    assert told(cluster(*jobs, pending("9"), **idle), IDLE) == [
        "requeue job 1 and hold it: its 8 GPUs were idle for 30 min, and job 9 waits for 8 GPUs"
    ]
    assert told(cluster(*jobs, pending("9"), **idle), ControllerSettings()) == []
    moved = msgspec.structs.replace(IDLE, idle_partition="scavenge")
    assert told(cluster(*jobs, pending("9"), **idle), moved)[1:] == [
        "set partition of job 1 from low to scavenge: its GPUs were idle"
    ]


def test_an_urgent_job_takes_idle_gpus_before_those_at_work() -> None:
    jobs = (running("1", {"a": 8}, ran_s=9000), running("2", {"b": 8}, ran_s=10), node("a"), node("b"))
    view = cluster(*jobs, pending("9", comment="urgent"), idle_for_s={"1": 1800.0})
    both = msgspec.structs.replace(URGENT, reclaims_idle=True)
    assert [action.target for action in decide(view, ControllerState(), both)] == ["1"]


def test_reservation_and_partition_of_urgent_jobs() -> None:
    settings = msgspec.structs.replace(URGENT, reserves_nodes=True, urgent_partition="high", urgent_qos="now")
    view = cluster(*full(), pending("9", comment="urgent", time_limit_s=600))
    assert told(view, settings) == [
        "set partition of job 9 from low to high: it is urgent",
        "set qos of job 9 from none to now: it is urgent",
        "reserve a as flatout_9 for bob: only urgent job 9 can start there",
        "put job 9 into reservation flatout_9: it is urgent",
        "requeue job 1 and hold it: urgent job 9 needs 8 GPUs; it ran 100 s on 8 GPUs and loses 100 s of it",
    ]
    entries = done(*decide(view, ControllerState(), settings))
    ended = cluster(node("a", is_reserved=True), reservations=("flatout_9", "theirs"))
    sentences = told(ended, settings, state_from_log(entries, (), NOW))
    assert sentences[-1] == "delete reservation flatout_9: job 9 has ended"


def test_the_order_of_each_policy() -> None:
    jobs = (
        pending("1", gpus=8, user="x", time_limit_s=900),
        pending("2", gpus=1, user="x", time_limit_s=3000),
        pending("3", gpus=4, user="y", time_limit_s=1200),
        running("7", {"a": 8}, user="x"),
    )
    view = cluster(*jobs, durations_s={"3": 100.0}, attained_gpu_s={"2": 50.0})
    for order, wanted in (
        (fifo, ["1", "2", "3"]),
        (shortest, ["3", "1", "2"]),
        (qssf, ["3", "2", "1"]),
        (least_attained, ["3", "1", "2"]),
    ):
        actions = decide(view, ControllerState(), ControllerSettings(order=order, order_name=order.__name__))
        after = {job.id: job.priority or 0 for job in jobs[:3]} | {each.target: int(each.value) for each in actions}
        assert sorted(after, key=lambda job: -after[job]) == wanted, order.__name__


def test_nice_moves_a_job_as_far_as_priority_would() -> None:
    view = cluster(pending("1", time_limit_s=900), pending("2", time_limit_s=60, nice=5))
    by_priority = decide(view, ControllerState(), ControllerSettings(order=shortest))[0]
    by_nice = decide(view, ControllerState(), ControllerSettings(order=shortest, order_by="nice"))[0]
    assert (by_nice.kind, by_nice.target, by_nice.previous) == ("nice", "2", "5")
    assert 998 - (int(by_nice.value) - 5) == int(by_priority.value)


def test_a_node_that_fails_again_and_again_is_drained_once() -> None:
    nodes = [node(name) for name in "abcdefghijklmnopqrst"]
    failures = tuple(NodeFailure(node=name, unix_s=NOW - 60 * number) for name in "abc" for number in (1, 2, 3))
    view = cluster(*nodes)
    memory = state_from_log((), failures, NOW)
    assert told(view, ControllerSettings(), memory) == [
        "drain node a: flatout: 3 failures in 24 h",
        "drain node b: flatout: 3 failures in 24 h",  # and not c: no more than a tenth of the nodes
    ]
    old = tuple(NodeFailure(node="a", unix_s=NOW - 90_000) for _ in range(9))
    assert told(view, ControllerSettings(), state_from_log((), old, NOW)) == []
    assert told(cluster(node("a", is_drained=True, reason="broken fan")), ControllerSettings(), memory) == []
    after_us = state_from_log(done(*decide(view, memory, ControllerSettings()), unix_s=NOW - 30), failures, NOW)
    assert "a" not in [
        action.target for action in decide(view, after_us, ControllerSettings())
    ]  # a human has resumed it
    shared = tuple(NodeFailure(node="a", unix_s=NOW - 60, weight=1 / 64) for _ in range(9))
    assert told(msgspec.structs.replace(view, failures=shared), ControllerSettings()) == []


def test_a_failure_that_was_seen_and_is_in_the_accounting_is_one() -> None:
    seen = tuple(NodeFailure(node="a", unix_s=NOW - 3600 * number) for number in (1, 2))
    accounted = tuple(NodeFailure(node="a", unix_s=each.unix_s + 30) for each in seen)
    view = cluster(node("a"), failures=accounted)
    assert told(view, ControllerSettings(), state_from_log((), seen, NOW)) == []
    third = (*accounted, NodeFailure(node="a", unix_s=NOW - 9 * 3600))
    view = msgspec.structs.replace(view, failures=third)
    assert told(view, ControllerSettings(), state_from_log((), seen, NOW)) == [
        "drain node a: flatout: 3 failures in 24 h"
    ]


def test_five_thousand_jobs_are_quick() -> None:
    nodes = [node(f"n{number}") for number in range(1250)]
    jobs = [running(str(number), {f"n{number // 8}": 1}, ran_s=number) for number in range(10_000)]
    waiting = [pending(str(20_000 + number), comment="urgent" * (number < 3), nodes=4) for number in range(2000)]
    view = cluster(*nodes, *jobs, *waiting)
    settings = msgspec.structs.replace(URGENT, order=fifo)
    begin = time.monotonic()
    actions = decide(view, ControllerState(), settings)
    assert len({action.cause for action in actions if action.cause}) == 3
    assert time.monotonic() - begin < 30  # no figure, but a guard against the square of their number
