"""Which GPU errors are the job's own, and that the list says where it is from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import flatout.catalog
from flatout.catalog.xids import is_job_fault, xid_name

# Of which NVIDIA's list of Xids says that applications cause them; the last is left by processes that were ended.
JOB_FAULTS = {13, 31, 43, 45}


def test_only_errors_of_applications_are_the_jobs_own() -> None:
    assert {number for number in range(300) if is_job_fault(number)} == JOB_FAULTS


def test_an_error_has_nvidias_name_or_none() -> None:
    assert xid_name(79) == "GPU has fallen off the bus"
    assert xid_name(119) == "GSP RPC timeout"
    assert xid_name(9999) is None and not is_job_fault(9999)


def test_the_list_says_where_it_is_from() -> None:
    found = tomllib.loads((Path(flatout.catalog.__file__).parent / "xids.toml").read_text())
    assert found["source"].startswith("https://docs.nvidia.com/deploy/xid-errors")
    assert found["date"]
