"""A plain `flatout run` has heartbeats, so that `flatout watch` finds its job, unless another Flatout reads them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

import pytest

from flatout.inside.protocol import Variable
from flatout.launch import ExitStatus
from flatout.run import RunRequest, job, prepare
from flatout.watch.jobs import RunningJob, choose_job, running_jobs


def found_while_it_runs(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> tuple[list[RunningJob], str]:
    """Run the command, and return the jobs that are found meanwhile, and the folder of its heartbeats."""
    found: list[RunningJob] = []
    folders = []

    def run_and_look(words: Sequence[str], environment: Mapping[str, str]) -> ExitStatus:
        folders.append(environment[Variable.HEARTBEAT])
        process = subprocess.Popen(words, env=environment)
        try:
            found.extend(each for each in running_jobs() if process.pid in each.pids)
            if found:
                assert choose_job(str(process.pid)).folder == found[0].folder
        finally:
            process.kill()
            process.wait()
        return ExitStatus(code=0, signal=None, start_unix_s=time.time(), end_unix_s=time.time())

    monkeypatch.setattr(job, "run_local", run_and_look)
    request = RunRequest(command=command)
    job.run(request, prepare(request, os.environ))
    return found, folders[0]


def test_a_plain_job_is_found_by_its_script_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "sesame-open-now")
    command = ("sh", "-c", "sleep 60; : sesame-open-now", "train.py")
    (found,), folder = found_while_it_runs(monkeypatch, command)
    assert (found.program, found.pid, found.ledger) == ("flatout run", os.getpid(), None)
    assert "sleep 60" in found.name and "sesame" not in found.name
    assert folder == str(found.folder / "attempt-0")


@pytest.mark.parametrize("variable", [Variable.HEARTBEAT, Variable.RECORDING])
def test_the_heartbeats_of_an_outer_job_stay_where_it_reads_them(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variable.HEARTBEAT, "/of/the/outer/job")
    monkeypatch.setenv(variable, "/of/the/outer/job")
    _, folder = found_while_it_runs(monkeypatch, ("sleep", "60"))
    assert folder == "/of/the/outer/job"
