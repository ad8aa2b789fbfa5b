"""Whatever starts the ranks: each is recorded once, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.profile.runs import environment, job, profiling, recorded, run, torchrun, words
from tests.slurm import free_port

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.profile import read_recording
from flatout.read import open_sources, read_trace
from flatout.records.recording import Recording

pytestmark = pytest.mark.usefixtures("warm")

WARMUP = ("--warmup", "12")
NUM_STEPS = 80
STEPS = ("--steps", NUM_STEPS, "--pause", 0.01)  # two ranks trace three steps, 0.3 s or 30 such steps after a plan


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, str]:
    """Two ranks under torchrun, each with a DataLoader worker."""
    out = tmp_path_factory.mktemp("two") / "recording"
    recording, done = recorded(out, torchrun(*STEPS, "--workers", 1), *WARMUP)
    return recording, done.stderr


def test_torchrun_gives_two_ranks_and_no_more(two_ranks: tuple[Recording, str]) -> None:
    recording, _ = two_ranks
    assert [rank.rank for rank in recording.ranks] == [0, 1]
    assert {rank.world_size for rank in recording.ranks} == {2}
    assert {rank.backend for rank in recording.ranks} == {"gloo"}
    assert {len(rank.steps.number) for rank in recording.ranks} == {NUM_STEPS}
    assert {rank.ended_by for rank in recording.ranks} == {"exit"}
    assert recording.problems == ()
    assert recording.missing_ranks == ()


def test_all_ranks_trace_the_same_steps(two_ranks: tuple[Recording, str]) -> None:
    first, second = two_ranks[0].ranks
    assert len(first.traced_steps) == 3
    assert first.traced_steps == second.traced_steps


def test_traces_have_steps_collectives_and_shapes(two_ranks: tuple[Recording, str]) -> None:
    recording, _ = two_ranks
    with open_sources([Path(recording.path)]) as sources:
        assert [source.rank_hint for source in sources] == [0, 1]
        for source, rank in zip(sources, recording.ranks, strict=True):
            table = read_trace(source)
            steps = sorted(name for name in table.names if name.startswith("ProfilerStep#"))
            assert steps == sorted(f"ProfilerStep#{number}" for number in rank.traced_steps)
            assert table.meta.rank == rank.rank
            collective = table.name_matches(np.array([name == "gloo:all_reduce" for name in table.names]))
            assert collective.any()
            assert (table.shape[collective] >= 0).all()


def test_samples_tokens_and_time_in_the_loader_are_counted(two_ranks: tuple[Recording, str]) -> None:
    recording, _ = two_ranks
    for rank in recording.ranks:
        assert set(rank.steps.num_samples[1:]) == {4.0}
        assert set(rank.steps.num_tokens[1:]) == {48.0}
        assert set(rank.steps.num_backward) == {1}
        assert (rank.steps.loader_s > 0).all()
        assert (rank.steps.loader_s < rank.steps.duration_s).all()
    measured = recording.measured
    assert measured.mean_step_s is not None and measured.regular_step_s is not None
    assert measured.samples_per_s == pytest.approx(8 / measured.mean_step_s)
    assert measured.tokens_per_s == pytest.approx(96 / measured.mean_step_s)
    assert measured.regular_samples_per_s == pytest.approx(8 / measured.regular_step_s)


def test_flops_are_those_of_the_model(two_ranks: tuple[Recording, str]) -> None:
    first, second = two_ranks[0].ranks
    assert first.flops_by_type == second.flops_by_type
    assert first.flops_by_type is not None
    weights = 16 * 16 * 3 + 16 * 48 + 16 * 16 + 2 * 16 * 32 + 16 * 50  # convolution, attention, feed-forward, head
    attention = 2 * 11 * 16  # scores and values, for a token
    assert first.flops_by_type["fp32"] == pytest.approx(6 * 44 * (weights + attention), rel=0.1)
    assert two_ranks[0].measured.reasons["mfu"].startswith("no vendor states a peak rate for a CPU")


def test_a_measured_ceiling_gives_an_mfu_on_the_cpu(two_ranks: tuple[Recording, str]) -> None:
    measured = read_recording(Path(two_ranks[0].path), peaks={"fp32": 1e9}).measured
    assert measured.flops_per_step is not None
    assert measured.mean_step_s is not None
    assert measured.mfu == pytest.approx(measured.flops_per_step / 1e9 / 2 / measured.mean_step_s)


def test_the_machine_was_sampled(two_ranks: tuple[Recording, str]) -> None:
    (host,) = two_ranks[0].hosts
    assert host.cores_allowed <= len(os.sched_getaffinity(0))
    assert host.cores_busy is not None
    assert 0 < host.cores_busy <= host.cores_allowed + 0.1
    assert host.memory_used_bytes is not None
    assert host.memory_used_bytes > 0


def test_the_end_says_what_was_recorded_and_what_to_type(two_ranks: tuple[Recording, str]) -> None:
    recording, stderr = two_ranks
    assert f"flatout: recorded 2 ranks, {NUM_STEPS} steps, to {recording.path}" in stderr
    (step,) = [line for line in stderr.splitlines() if line.startswith("next: ")]
    assert step.startswith("next: flatout diagnose ") and stderr.rstrip().endswith(step)


def test_the_folder_is_read_alone_on_another_machine(two_ranks: tuple[Recording, str], tmp_path: Path) -> None:
    shutil.copytree(two_ranks[0].path, tmp_path / "copy")
    done = run([sys.executable, "-m", "flatout", "diagnose", tmp_path / "copy", "--json"])
    assert done.returncode == 0, done.stderr
    assert '"flatout/diagnosis"' in done.stdout


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_a_script_starts(tmp_path: Path, method: str) -> None:
    port = "29541" if method == "spawn" else "29542"
    command = job("--spawn", method, *STEPS, "--port", port)
    recording, _ = recorded(tmp_path / "r", command, *WARMUP)
    first, second = recording.ranks
    assert (first.rank, second.rank) == (0, 1)
    assert first.traced_steps == second.traced_steps != ()
    assert {first.ended_by, second.ended_by} == {"exit"}


def test_variables_of_slurm_name_the_rank(tmp_path: Path) -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77", "SLURM_NNODES": "2"}
    recording, _ = recorded(tmp_path / "r", job("--steps", 4), "--light", **slurm, SLURM_STEP_ID="2")
    assert [rank.rank for rank in recording.ranks] == [3]
    assert recording.missing_ranks == (0, 1, 2)
    assert recording.runs[0].run_id == "slurm-77.2"


@pytest.mark.parametrize("style", ["ompi", "pmi"])
def test_ranks_of_mpirun_without_a_process_group_are_recorded(tmp_path: Path, style: str) -> None:
    """As a job of Horovod runs, whose optimizer is wrapped in a class of its own: a step is still one step."""
    jobs = Path(__file__).parents[1] / "jobs"
    mpirun = [sys.executable, str(jobs / "mpirun.py"), style, "2"]
    command = [*mpirun, sys.executable, str(jobs / "horovod_like_job.py"), "120"]
    recording, _ = recorded(tmp_path / "r", command, *WARMUP)
    assert [(rank.rank, rank.world_size) for rank in recording.ranks] == [(0, 2), (1, 2)]
    assert [len(rank.steps.number) for rank in recording.ranks] == [120, 120]
    assert recording.missing_ranks == recording.problems == ()
    assert all(rank.traced_steps for rank in recording.ranks)
    assert diagnose_paths([tmp_path / "r"]).diagnosis.job.num_ranks == 2


def test_every_task_of_a_slurm_step_may_have_a_parent_of_its_own(tmp_path: Path) -> None:
    """`srun flatout profile -- python train.py`: one recording, told once, with every rank's trace packed."""
    out = tmp_path / "r"
    tasks = []
    port = str(free_port())
    for rank in ("0", "1"):
        variables = {"SLURM_PROCID": rank, "SLURM_NTASKS": "2", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0"}
        ports = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": "2"}
        command = [*profiling(out, *WARMUP), *job(*STEPS)]
        tasks.append(
            subprocess.Popen(
                command,
                env=environment(**variables, **ports),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [task.communicate(timeout=90)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert sum("flatout: recorded 2 ranks" in text for text in told) == 1
    assert sum("flatout: " in text for text in told) == 1
    assert sorted(file.name for file in out.glob("*.gz")) == ["rank0.json.gz", "rank1.json.gz"]
    assert read_recording(out).problems == ()
    assert not (out / ".state").exists()


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_ignores_the_environment_is_told(tmp_path: Path, option: str) -> None:
    recording, done = recorded(tmp_path / "r", [sys.executable, option, "-c", "print(1)"])
    assert done.stdout == "1\n"
    assert recording.ranks == ()
    assert f"was not loaded into any Python process: Python's option `{option}` ignores" in words(done)[1]


def test_a_command_without_torch_is_told(tmp_path: Path) -> None:
    _, done = recorded(tmp_path / "r", [sys.executable, "-c", "pass"])
    assert "loaded into 1 Python process, but none imported torch" in words(done)[1]


def test_a_command_without_training_is_told(tmp_path: Path) -> None:
    _, done = recorded(tmp_path / "r", [sys.executable, "-c", "import torch"])
    assert "1 process imported torch, but none made an optimizer step" in words(done)[1]


def test_the_users_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.from_user = 'kept'\n")
    script = "import sitecustomize, sys; print(from_user, sitecustomize.__file__, sys.path[1:])"
    command = [sys.executable, "-c", script]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])}
    plain = run(command, **path)
    done = run([*profiling(tmp_path / "r"), *command], **path)
    assert plain.stdout.startswith("kept")
    assert done.stdout == plain.stdout


def test_a_sitecustomize_that_fails_does_so_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])}
    done = run([*profiling(tmp_path / "r"), sys.executable, "-c", "print(1)"], **path)
    assert done.stdout == "1\n"
    assert "ValueError: theirs" in done.stderr


def test_the_environment_differs_by_what_is_documented(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(*sorted(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"]
    plain, done = run(command), run([*profiling(tmp_path / "r"), *command])
    changed = {line.split("=")[0] for line in {*plain.stdout.splitlines()} ^ {*done.stdout.splitlines()}}
    assert changed == {"PYTHONPATH", "FLATOUT_RECORDING", "FLATOUT_STEPS", "FLATOUT_LOADER_STAGES"}


def test_a_torch_script_finds_nothing_of_ours_but_what_waits_for_other_imports(tmp_path: Path) -> None:
    """Finders stay until JAX, ONNX Runtime or numpy's random numbers are imported, which may never be."""
    script = (
        "import torch, sys, importlib.util\n"
        "finders = [type(finder) for finder in sys.meta_path if '_Wait' not in type(finder).__name__]\n"
        "print(finders, 'flatout' in sys.modules, torch.__spec__.loader)\n"
    )
    plain = run([sys.executable, "-c", script])
    done = run([*profiling(tmp_path / "r"), sys.executable, "-c", script])
    strip = lambda text: text.rsplit(" object at", 1)[0]  # noqa: E731
    assert strip(done.stdout) == strip(plain.stdout)


def test_untraced_step_time_is_of_the_settled_steps(two_ranks: tuple[Recording, str]) -> None:
    for rank in two_ranks[0].ranks:
        assert rank.settled_step is not None
        assert rank.num_untraced_steps >= 5
        before = (rank.steps.number >= rank.settled_step - 5) & (rank.steps.number < rank.traced_steps[0])
        ordinary = rank.steps.duration_s[before & rank.steps.is_ordinary]
        assert rank.untraced_step_s == pytest.approx(np.median(ordinary), rel=0.5)
