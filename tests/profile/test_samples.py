"""What is read from the sampler's file: of errors the whole run, of load the time that was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.profile.sample_lines import host_use, read_samples
from flatout.records.machine import Xid
from flatout.records.recording import HostUse

pytestmark = pytest.mark.usefixtures("warm")

HEADER = {
    "schema": "flatout/samples",
    "hostname": "n1",
    "cores_allowed": 8.0,
    "cores_allowed_ids": [0],
    "memory_limit_bytes": None,
    "memory_bytes": 1,
    "gpus": [],
}


def host(folder: Path, *samples: dict[str, Any], times: tuple[float, float] = (1.0, 2.0)) -> HostUse:
    """A sample a second."""
    lines: list[dict[str, Any]] = [HEADER, *({"unix_s": float(at)} | one for at, one in enumerate(samples))]
    file = folder / "host-n1.samples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    content = read_samples(file)
    assert content is not None and content.bad == ()
    return host_use(content, *times)


def test_an_error_counts_whenever_it_came_and_once_whoever_told_it(tmp_path: Path) -> None:
    event, line = {"gpu": 3, "number": 79}, {"gpu": 3, "number": 79, "address": "0000:9b:00"}
    elsewhere = {"address": "0000:1b:00", "number": 48}
    found = host(tmp_path, {"xids": [event]}, {"xids": [line]}, {"xids": []}, {"xids": [elsewhere]})
    assert found.xids == (
        Xid(number=79, gpu=3, hostname="n1"),
        Xid(number=48, address="0000:1b:00", hostname="n1"),
    )


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (({"xids": []}, {"xids": []}), ()),
        (({"xids": []}, {}), None),  # the watch ended
        (({}, {}), None),  # of an older sampler, or no driver tells
        (({}, {"xids": [{"gpu": 0, "number": 31}]}), (Xid(number=31, gpu=0, hostname="n1"),)),
        ((), None),
    ],
)
def test_what_nobody_watched_is_unknown_and_not_none(
    tmp_path: Path, samples: tuple[dict[str, Any], ...], expected: tuple[Xid, ...] | None
) -> None:
    assert host(tmp_path, *samples).xids == expected


def test_foreign_load_is_the_mean_of_the_time_that_counts(tmp_path: Path) -> None:
    loads = [{"cores_busy_by_others": load} for load in (9.0, 1.0, 2.0, 9.0)]
    assert host(tmp_path, *loads).cores_busy_by_others == 1.5
    assert host(tmp_path, {}, {}, {}).cores_busy_by_others is None
