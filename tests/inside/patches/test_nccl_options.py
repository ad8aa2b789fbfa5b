"""Options of NCCL's communicators, with a stand-in for NCCL: what the patch sets, reads back, and leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flatout.inside.patches.nccl_options import nccl_options
from flatout.inside.patches.report import Report

UNSET = -(2**31)
LIMIT = timedelta(minutes=10)


class Options:
    def __init__(self) -> None:
        self.config = SimpleNamespace(min_ctas=UNSET, max_ctas=UNSET)
        self.is_high_priority_stream = True
        self._timeout = timedelta(minutes=30)


class Group:
    def __init__(self, options: Any) -> None:
        self._options = options

    def _get_backend(self, device: torch.device) -> Any:
        assert device.type == "cuda"
        return SimpleNamespace(options=self._options)


class Nccl:
    """Makes groups as torch does, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.most_ctas = 64
        self.is_member = True

    def new_group(
        self,
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: str,
        store: Any,
        group_name: str,
        backend_options: Any = None,
        timeout: timedelta | None = None,
    ) -> tuple[Any, Any]:
        self.given.append(backend_options)
        if not self.is_member:
            return dist.GroupMember.NON_GROUP_MEMBER, None
        options = backend_options if backend_options is not None else Options()
        options.config.max_ctas = min(options.config.max_ctas, self.most_ctas)
        return Group(options), None


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nccl]:
    stand_in = Nccl()
    module = dist.distributed_c10d
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(module, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(module, "_new_process_group_helper", stand_in.new_group)
    return stand_in


def installed(**parameters: int) -> Report:
    report = Report("nccl_options", parameters, SimpleNamespace(write=lambda *_, **__: None))  # type: ignore[arg-type]
    nccl_options(report, **parameters)
    return report


def made(backend: str = "nccl", **options: Any) -> Any:
    return dist.distributed_c10d._new_process_group_helper(2, 0, [], backend, None, "0", timeout=LIMIT, **options)


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_group_over_nccl_gets_both_options_and_they_are_read_back(nccl: Nccl, backend: str) -> None:
    report = installed(min_ctas=16, max_ctas=16)
    assert report.reason == "no process group over NCCL was made"
    group, _ = made(backend)
    config = group._get_backend(torch.device("cuda")).options.config
    assert (config.min_ctas, config.max_ctas) == (16, 16)
    [options] = nccl.given
    assert (options._timeout, options.is_high_priority_stream) == (LIMIT, False), "as torch makes them itself"
    assert (report.is_applied, report.details) == (True, {"groups": 1})


def test_a_group_over_gloo_gets_none(nccl: Nccl) -> None:
    report = installed(min_ctas=16, max_ctas=16)
    made("gloo")
    assert nccl.given == [None]
    assert not report.is_applied


def test_options_of_the_scripts_own_stay(nccl: Nccl) -> None:
    report = installed(min_ctas=16, max_ctas=16)
    own = Options()
    made(backend_options=own)
    assert nccl.given == [own]
    assert own.config.min_ctas == UNSET
    assert not report.is_applied
    assert report.notes == ["a process group keeps the script's own options"]


def test_options_that_a_group_does_not_have_are_not_reported_as_applied(nccl: Nccl) -> None:
    nccl.most_ctas = 8
    report = installed(min_ctas=16, max_ctas=16)
    made()
    assert not report.is_applied
    assert report.notes == ["a process group has 16 and 8 in place of the options"]


def test_a_rank_outside_a_group_reads_nothing_back(nccl: Nccl) -> None:
    nccl.is_member = False
    report = installed(min_ctas=16, max_ctas=16)
    assert made()[0] is dist.GroupMember.NON_GROUP_MEMBER
    assert report.notes == []


@pytest.mark.parametrize("parameters", [{"min_ctas": 16}, {"max_ctas": 16}, {"min_ctas": 32, "max_ctas": 16}])
def test_one_option_alone_changes_nothing(nccl: Nccl, parameters: dict[str, int]) -> None:
    report = installed(**parameters)
    made()
    assert nccl.given == [None]
    assert report.notes == ["NCCL takes min_ctas and max_ctas together only, in this order"]


def test_a_torch_without_nccl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert installed(min_ctas=16, max_ctas=16).notes == ["this torch has no NCCL"]
