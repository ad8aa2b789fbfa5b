"""Which folders are made, joined and refused; and what a damaged recording still tells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flatout.errors import InputError, OutputError
from flatout.inside.protocol import STEP_COLUMNS
from flatout.profile import read_recording
from flatout.profile.folder import default_path, open_folder, shared_run_id
from flatout.profile.problems import problems
from flatout.records.recording import HostRecording

UNUSED = [0] * (len(STEP_COLUMNS) - 13)  # the columns that a row leaves out after `num_alloc_retries`
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}


def as_host(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("flatout.profile.folder._hostname", lambda: name)


@pytest.mark.parametrize(
    ("step", "attempt", "name"),
    [("0", None, "slurm-7.0"), ("3", "0", "slurm-7.3"), ("3", "2", "slurm-7.3.2"), (None, None, None)]
    + [(str(special), None, None) for special in range(0xFFFFFFFA, 0xFFFFFFFE)],
)
def test_only_a_step_has_tasks_and_a_job_put_back_in_the_queue_is_another_run(
    step: str | None, attempt: str | None, name: str | None
) -> None:
    """Slurm 22.05, slurm.h: an interactive step is 0xfffffffa, the batch script 0xfffffffb, external 0xfffffffc."""
    given = {"SLURM_STEP_ID": step, "SLURM_RESTART_COUNT": attempt}
    environment = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", **{n: v for n, v in given.items() if v is not None}}
    assert shared_run_id(environment) == name


def test_tasks_of_a_slurm_step_share_a_folder(tmp_path: Path) -> None:
    assert default_path(SLURM) == Path("flatout-out/slurm-7.0")
    first, second = (open_folder(tmp_path / "r", force=False, environment=SLURM) for _ in range(2))
    assert first.run_id == second.run_id
    assert first.host_file != second.host_file
    assert first.samples_file is not None
    assert second.samples_file is None  # the host is sampled once
    assert (first.is_first, second.is_first) == (True, False)  # and the whole is told once
    host = os.uname().nodename
    with pytest.raises(OutputError, match=f"a job on {host} is being recorded in"):
        open_folder(tmp_path / "r", force=False, environment={**SLURM, "SLURM_JOB_ID": "8"})


def test_jobs_that_start_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260102-030405")
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: default_path({}), range(8)))
    assert len(set(paths)) == 8
    folders = [open_folder(path, force=False, environment={}) for path in paths]
    assert all(folder.is_first for folder in folders)
    assert len({folder.run_id for folder in folders}) == 8


def test_a_working_folder_that_takes_no_folder_is_told_by_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flatout-out").write_text("a file")
    with pytest.raises(OutputError, match="the job was not started"):
        open_folder(default_path({}), force=False, environment={})


def test_another_host_joins_a_run_that_is_just_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command is started on two nodes at once, and the folder is there before its host has said so."""
    as_host(monkeypatch, "one")
    first = open_folder(tmp_path / "r", force=False, environment={}, job_key="a")
    claimed = first.host_file.rename(tmp_path / "later")
    timer = threading.Timer(0.3, lambda: claimed.rename(first.host_file))
    timer.start()
    as_host(monkeypatch, "two")
    second = open_folder(tmp_path / "r", force=False, environment={}, job_key="a")
    timer.join()
    assert (second.run_id, second.is_first) == (first.run_id, False)


def test_another_host_joins_a_run_that_is_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_host(monkeypatch, "one")
    first = open_folder(tmp_path / "r", force=False, environment={}, job_key="a")
    as_host(monkeypatch, "two")
    second = open_folder(tmp_path / "r", force=True, environment={}, job_key="a")
    assert second.run_id == first.run_id
    assert first.host_file.exists()
    assert second.samples_file == tmp_path / "r" / "host-two.samples.jsonl"


@pytest.mark.parametrize(("first_key", "second_key"), [(None, None), ("a", "b"), ("a", None), (None, "a")])
@pytest.mark.parametrize("force", [False, True])
def test_another_job_neither_joins_nor_replaces_a_recording_that_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_key: str | None, second_key: str | None, force: bool
) -> None:
    as_host(monkeypatch, "one")
    first = open_folder(tmp_path / "r", force=False, environment={}, job_key=first_key)
    as_host(monkeypatch, "two")
    with pytest.raises(OutputError, match=r"a job on one is being recorded in .* and this job is not part of it"):
        open_folder(tmp_path / "r", force=force, environment={}, job_key=second_key)
    assert [file.name for file in sorted((tmp_path / "r").glob("host-*"))] == [first.host_file.name]


def test_a_rendezvous_id_of_a_run_that_has_ended_names_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--rdzv-id 100` of a tutorial; but ranks that torchrun starts again belong to the run."""
    environment = {"TORCHELASTIC_RUN_ID": "100"}
    as_host(monkeypatch, "one")
    first = open_folder(tmp_path / "r", force=False, environment=environment)
    as_host(monkeypatch, "two")
    assert open_folder(tmp_path / "r", force=False, environment=environment).run_id == first.run_id
    for file in (tmp_path / "r").glob("host-*"):
        file.write_text(json.dumps({"end_unix_s": 1.0}))
    as_host(monkeypatch, "three")
    with pytest.raises(OutputError, match="nothing is overwritten"):
        open_folder(tmp_path / "r", force=False, environment=environment)
    again = {**environment, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert not open_folder(tmp_path / "r", force=False, environment=again).is_first


def test_a_recording_whose_profile_was_killed_is_replaced_once_its_job_has_ended(tmp_path: Path) -> None:
    recording = tmp_path / "r"
    starter = (
        "import sys, os; from pathlib import Path; from flatout.launch.abandoned import note_starter;"
        "note_starter(Path(sys.argv[1]), 'flatout profile', 'train')"
    )
    open_folder(recording, force=False, environment={})
    subprocess.run([sys.executable, "-c", starter, str(recording / ".state")], check=True)
    job = subprocess.Popen(["sleep", "60"], env={"FLATOUT_RECORDING": str(recording), "PATH": os.environ["PATH"]})
    try:
        with pytest.raises(OutputError, match="is being recorded in"):
            open_folder(recording, force=True, environment={})
    finally:
        job.kill()
        job.wait()
    assert open_folder(recording, force=True, environment={}).is_first


def test_a_run_that_has_ended_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_host(monkeypatch, "one")
    first = open_folder(tmp_path / "r", force=False, environment={})
    first.host_file.write_text(json.dumps({"end_unix_s": 1.0}))
    as_host(monkeypatch, "two")
    with pytest.raises(OutputError, match="nothing is overwritten"):
        open_folder(tmp_path / "r", force=False, environment={})


def test_a_run_of_long_ago_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_host(monkeypatch, "one")
    first = open_folder(tmp_path / "r", force=False, environment={})
    os.utime(first.host_file, (0, 0))
    as_host(monkeypatch, "two")
    with pytest.raises(OutputError, match="nothing is overwritten"):
        open_folder(tmp_path / "r", force=False, environment={})


def test_what_is_no_recording_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a recording"):
        read_recording(tmp_path)


def header(rank: int, **more: object) -> dict[str, object]:
    from flatout.inside.recording.step_file import SCHEMA

    return {
        "schema": SCHEMA,
        "version": 1,
        "rank": rank,
        "world_size": 2,
        "hostname": "one",
        "device": None,
        "backend": None,
        "torch": "2.13.0",
        "steps_from": "optimizer",
        "base_unix_ns": 10**18,
        "columns": STEP_COLUMNS,
        **more,
    }


def test_a_rank_file_that_was_cut_short_is_read(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("{}")
    rows = [
        [step, step * 10, 10, 2, 1, 4, None, 1, None, "", loss, None, None, *UNUSED]
        for step, loss in ((0, 1.5), (1, "nan"))
    ]
    lines = [json.dumps(line) for line in (header(0), *rows)]
    (tmp_path / "rank0.steps.jsonl").write_text("\n".join(lines) + "\n[2,20,1")
    (tmp_path / "rank1.steps.jsonl").write_text('{"schema": "flat')
    recording = read_recording(tmp_path)
    (rank,) = recording.ranks
    assert list(rank.steps.number) == [0, 1]
    assert rank.ended_by is None
    assert recording.missing_ranks == (1,)
    said = " ".join(one.problem for one in recording.problems)
    assert "1 lines of its steps cannot be read" in said
    assert "1 of 2 ranks were not recorded: 1" in said
    assert recording.measured.reasons["step_s"] == "the job ended before its step times were stable"


def test_the_spread_of_untraced_steps_is_known_and_an_outlier_plays_no_part_in_it(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("{}")
    times = np.random.default_rng(3).normal(0.1, 0.004, 401)
    times[350] = 9.0  # a checkpoint, say
    lines: list[object] = [header(0)]
    lines += [
        [n, n * 10**8, int(s * 1e9), 0, 0, None, None, 1, None, "", None, None, None, *UNUSED]
        for n, s in enumerate(times)
    ]
    plan = {"event": "plan", "generation": 0, "settled": 10, "flops_step": 400, "start": None, "num_steps": 1}
    (tmp_path / "rank0.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, plan]))
    measured = read_recording(tmp_path).measured
    assert measured.num_untraced_steps == 395
    assert measured.step_spread_s == pytest.approx(0.004, rel=0.15)
    plan |= {"flops_step": 9}
    (tmp_path / "rank0.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, plan]))
    assert read_recording(tmp_path).measured.step_spread_s is None, "of four steps"


def test_an_mfu_needs_the_gpu_to_be_in_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("{}")
    for rank, name in ((0, "NVIDIA H100 80GB HBM3"), (1, "NVIDIA H100 80GB HBM3")):
        device = {"index": 0, "name": name, "memory_bytes": 1, "uuid": None}
        lines: list[object] = [header(rank, device=device)]
        lines += [[n, n * 10**8, 10**8, 0, 0, None, None, 1, None, "", None, 5 + n, 0, *UNUSED] for n in range(20)]
        lines.append({"event": "plan", "generation": 0, "settled": 10, "flops_step": 15, "start": 19, "num_steps": 1})
        lines.append({"event": "flops", "flops_by_type": {"bf16": 989.4e12 * 0.1 * 0.4}, "problem": None})
        (tmp_path / f"rank{rank}.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    measured = read_recording(tmp_path).measured
    assert measured.step_s == pytest.approx(0.1)
    assert measured.mfu == pytest.approx(0.4, rel=0.01)
    assert measured.peak_memory_bytes == 24
    for file in tmp_path.glob("rank*"):
        file.write_text(file.read_text().replace("NVIDIA H100 80GB HBM3", "NVIDIA X1"))
    measured = read_recording(tmp_path).measured
    assert measured.mfu is None
    assert measured.reasons["mfu"] == "the catalogue does not list the GPU NVIDIA X1"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("python", "-I", "train.py"), "Python's option `-I`"),
        (("torchrun", "--x", "python3.12", "-uE", "train.py"), "Python's option `-uE`"),
        (("docker", "run", "image", "python", "train.py"), "`docker` gives the job an environment without"),
        (("env", "-i", "python", "train.py"), "`env` gives the job an environment without"),
        (("./train",), "the command does not start Python"),
        (("python", "train.py", "-I"), "the command does not start Python"),
    ],
)
def test_why_nothing_was_loaded(command: tuple[str, ...], reason: str) -> None:
    run = HostRecording(
        tool_version="1",
        command=command,
        run_id="r",
        hostname="one",
        is_light=False,
        start_unix_s=1.0,
        end_unix_s=2.0,
        exit_code=0,
    )
    (quality,) = problems([run], [], [], [])
    assert reason in quality.problem


def test_host_use_is_of_the_settled_steps(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("{}")
    lines: list[object] = [header(0)]
    lines += [[n, n * 10**9, 10**9, 0, 0, None, None, 1, None, "", None, None, None, *UNUSED] for n in range(20)]
    lines.append({"event": "plan", "generation": 0, "settled": 10, "flops_step": 15, "start": None, "num_steps": 1})
    (tmp_path / "rank0.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples: list[object] = [
        {
            "schema": "flatout/samples",
            "hostname": "one",
            "cores_allowed": 2.0,
            "cores_allowed_ids": [0, 1],
            "memory_limit_bytes": None,
            "memory_bytes": 100,
            "gpus": [{"index": 0, "name": "G"}],
        }
    ]
    for second in range(20):
        busy = 0.0 if second < 10 else 50.0
        gpu = {"busy_percent": 2 * busy, "throttle": ["power_cap"] if second % 2 else []}
        samples.append({"unix_s": 1e9 + second + 0.5, "cores_busy_percent": [busy, busy, 100.0], "gpus": [gpu]})
    (tmp_path / "host-one.samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples) + '{"unix')
    (host,) = read_recording(tmp_path).hosts
    assert (host.cores_busy, host.num_samples) == (1.0, 10)
    assert host.disk_read_bytes_per_s is None
    assert host.gpus[0].busy_share == 1.0
    assert host.gpus[0].throttle_share == {"power_cap": 0.5}
    assert host.gpus[0].power_w is None


def test_the_recording_may_be_moved(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "r", force=False, environment={})
    folder.host_file.unlink()
    shutil.move(folder.path, tmp_path / "s")
    assert read_recording(tmp_path / "s").ranks == ()
