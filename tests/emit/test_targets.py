from __future__ import annotations

import ast
import gc
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.emit.tunings import COMMAND, changes, every_change, own_argument, tuning

from flatout.change.nccl_measured import MEASURED
from flatout.change.patches import PATCHES
from flatout.change.setting import setting
from flatout.change.tuner_plugin import plugin_folder
from flatout.emit import deepspeed, environment, kubernetes, lightning, ray_job, slurm, snippet, torchrun
from flatout.emit.targets import TARGETS
from flatout.records.change import Change
from flatout.records.tuning import Emitted, Tuning

SETTINGS = ("nccl-sockets=2x2+8", "torchrun-numa-binding=node")
PATCHED = ("ddp-bucket=200", "dataloader-workers=15", "compile=default")


def bash_words(script: str, name: str) -> list[str]:
    """The words with which the script calls a program, by a shell that has a function of that name."""
    shown = 'printf "%s\\0" "$@"'
    text = f"{name}() {{ {shown}; }}\nexport -f {name}\n" + script.replace("exec ", "")
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("change", [None, *every_change(), own_argument()], ids=lambda c: c.name if c else "baseline")
def test_no_target_leaves_a_change_out_in_silence(target: str, change: Change | None) -> None:
    found = TARGETS[target](tuning(*([change] if change else [])))
    assert found.text.endswith("\n")
    if change is None:
        return
    words = [change.name, *(w for words in change.launch.values() for w in words)]
    words += [word for each in (change.argument.words if change.argument else ()) for word in each]
    is_noted = any(word in note for note in found.notes for word in words)
    assert is_noted or body(found) != body(TARGETS[target](tuning()))


def body(emitted: Emitted) -> str:
    """The text without what the heading says of the changes."""
    lines = emitted.text.splitlines()
    return "\n".join(line for line in lines if "Written by flatout" not in line)


@pytest.mark.parametrize("made", [tuning(*changes(*SETTINGS), own_argument()), tuning(*changes(*PATCHED)), tuning()])
@pytest.mark.parametrize("emit", [environment.emit, torchrun.emit, slurm.emit])
def test_shell_files_are_valid(emit: Any, made: Tuning, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(emit(made).text)
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-s", "bash", str(path)], check=True)


def test_the_environment_is_set_when_sourced() -> None:
    made = tuning(*changes("nccl-sockets=2x2+8", "allocator-expandable"))
    text = environment.emit(made).text + "env -0"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env={})
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert made.changes.environment.items() <= found.items()


def test_the_command_is_kept_and_its_launcher_told() -> None:
    made = tuning(*changes(*SETTINGS), own_argument())
    words = bash_words(torchrun.emit(made).text, "torchrun")
    assert words == ["--numa-binding=node", *COMMAND[1:-1], "16"]
    assert torchrun.emit(made).notes == ()


def test_patches_are_applied_by_flatout_run() -> None:
    words = bash_words(torchrun.emit(tuning(*changes(*PATCHED))).text, "flatout")
    assert words == ["run", "--config", "tuned.toml", "--", *COMMAND]


def test_a_launcher_that_the_command_does_not_call_is_told() -> None:
    made = tuning(*changes("srun-binding=cores"))
    assert torchrun.emit(made).notes == ("--cpu-bind=cores is for srun, which the command does not call",)
    assert "srun --cpu-bind=cores torchrun" in slurm.emit(made).text
    assert slurm.emit(made).notes == ()


def test_torchrun_by_its_module_is_a_launcher_too() -> None:
    command = ("python", "-m", "torch.distributed.run", "--numa-binding=socket", "train.py")
    text = torchrun.emit(tuning(*changes("torchrun-numa-binding=node"), command=command)).text
    assert "python -m torch.distributed.run --numa-binding=node train.py" in text


def test_a_long_command_is_broken_where_the_shell_allows() -> None:
    command = (*COMMAND, *(f"--option-{n}=some value; rm -rf $HOME" for n in range(12)))
    assert bash_words(torchrun.emit(tuning(command=command)).text, "torchrun") == list(command[1:])


def test_sbatch_directives_come_before_any_command() -> None:
    lines = slurm.emit(tuning(*changes("nccl-sockets=2x2+8"))).text.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1:3] == ["#SBATCH --job-name=flatout-tuned", "#SBATCH --ntasks-per-node=1"]
    assert not any(line.startswith("#SBATCH") for line in lines[3:])


def test_the_job_set_has_the_fields_of_its_api() -> None:
    yaml = pytest.importorskip("yaml")
    made = tuning(
        *changes("nccl-sockets=2x2+8"), machine={"num_hosts": "2", "ranks_per_host": "8", "device": "NVIDIA H200"}
    )
    found = yaml.safe_load(kubernetes.emit(made).text)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = found["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (2, 2, 0)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][-7:] == list(COMMAND[-7:])
    assert {each["name"]: each["value"] for each in container["env"]} == made.changes.environment
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}


@pytest.mark.parametrize(
    "odd", ["yes", "1.0", "null", "a: b", "- x", "#c", "", " ", "é\n", "0x1f", "~", "*a", "{", "1e3"]
)
def test_yaml_says_what_was_meant(odd: str) -> None:
    yaml = pytest.importorskip("yaml")
    from flatout.emit.yaml_text import yaml_text

    data = {"a": odd, odd: [odd, {"b": odd, "c": [1, True, None, 2.5]}], "empty": {}, "none": []}
    assert yaml.safe_load(yaml_text(data)) == data


def test_the_ray_job_has_the_fields_of_its_api() -> None:
    made = tuning(*changes("nccl-sockets=2x2+8"))
    found = json.loads(ray_job.emit(made).text)
    assert found.keys() == {"entrypoint", "entrypoint_num_gpus", "runtime_env", "metadata"}
    assert shlex.split(found["entrypoint"]) == list(COMMAND)
    assert found["runtime_env"] == {"env_vars": made.changes.environment}
    assert all(isinstance(value, str) for value in found["metadata"].values())


def test_every_patch_has_a_snippet() -> None:
    assert snippet.SNIPPETS.keys() == PATCHES.keys()


@pytest.mark.parametrize("change", [each for each in every_change() if each.patch], ids=lambda change: change.name)
def test_snippets_are_python(change: Change) -> None:
    ast.parse(snippet.emit(tuning(change)).text)


def test_the_snippet_has_the_exact_values() -> None:
    text = snippet.emit(tuning(*changes("dataloader-workers=15", "dataloader-pin-memory", "ddp-bucket=200"))).text
    assert "num_workers=15, pin_memory=True" in text
    assert "bucket_cap_mb=200" in text
    assert "DistributedDataParallel(model" in text


def test_the_snippet_sets_the_first_bucket_only_where_torch_takes_it() -> None:
    alone = snippet.emit(tuning(*changes("ddp-first-bucket=1"))).text
    assert "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1 << 20\n" in alone
    assert "tuned = dict()" in alone
    both = snippet.emit(tuning(*changes("ddp-bucket=200", "ddp-first-bucket=1"))).text
    assert "_DEFAULT_FIRST_BUCKET_BYTES" not in both
    assert "bucket_cap_mb_list=[1, 200]" in both
    assert "tuned = dict(bucket_cap_mb=200)" in both


def test_the_snippet_of_the_collector_does_what_the_patch_does() -> None:
    """The same steps as in `tests/inside/patches/test_garbage_collection.py`, by the emitted function."""
    text = snippet.emit(tuning(*changes("gc-together=50"))).text
    code: dict[str, Any] = {}
    exec(compile(text, "tuned_snippet.py", "exec"), code)
    found: list[tuple[int, int]] = []
    callback = lambda phase, info: found.append((step, info["generation"])) if phase == "start" else None  # noqa: E731
    try:
        gc.callbacks.append(callback)
        for step in range(1, 501):
            gc.disable()  # what is emitted does so too, at the tenth step
            code["step_ended"](step)
    finally:
        gc.callbacks.remove(callback)
        gc.enable()
    assert found == [(10, 2), *((step, 1) for step in range(50, 500, 50)), (500, 2)]


def test_settings_of_frameworks() -> None:
    made = tuning(*changes("ddp-bucket=200", "ddp-compression=bf16", "autocast=bfloat16", "dataloader-workers=15"))
    found = json.loads(deepspeed.emit(made).text)
    assert found == {
        "zero_optimization": {"reduce_bucket_size": 200 * 2**20 // 4},
        "communication_data_type": "bf16",
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    }
    assert any("dataloader-workers=15: DeepSpeed has no setting" in note for note in deepspeed.emit(made).notes)
    text = lightning.emit(made).text
    ast.parse(text)
    assert "precision='bf16-mixed'" in text
    assert "DDPStrategy(bucket_cap_mb=200, ddp_comm_hook=default_hooks.bf16_compress_hook)" in text


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    made = tuning(*changes("autocast=bfloat16", "compile=default", "torchrun-numa-binding=node"))
    path = tmp_path / "accelerate.yaml"
    path.write_text(TARGETS["accelerate"](made).text)
    found = config_args.load_config_from_file(str(path))
    assert (found.mixed_precision, found.num_processes) == ("bf16", 4)
    assert found.enable_cpu_affinity is True
    assert found.dynamo_config == {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}


def test_a_job_file_has_the_options_with_which_its_trials_were_jobs_but_for_their_time() -> None:
    times = ("--time", "10", "-t5")
    options = ("--partition=gpu", *times, "--gpus-per-node=8", "--comment=a b", "--time=7", "--nodes", "2")
    found = slurm.emit(tuning(*changes("nccl-sockets=2x2+8"), sbatch_options=options))
    assert "#SBATCH --partition=gpu --gpus-per-node=8 '--comment=a b' --nodes 2\n" in found.text
    assert found.notes == ("not in the script: --time 10 -t5 --time=7, which was only for a trial",)


@pytest.mark.parametrize("names", [("nccl-sockets=2x2+8",), PATCHED], ids=["environment", "patches"])
def test_the_first_node_is_filled_in_where_slurm_names_it_and_told_elsewhere(names: tuple[str, ...]) -> None:
    command = ("srun", "python", "t.py", "--master={head_node}:29500")
    made = tuning(*changes(*names), command=command)
    text = slurm.emit(made).text
    assert text.index("head_node=$(scontrol") < text.index("--master='\"$head_node\"':29500")
    assert "rdzv_port" not in text and "{head_node}" not in text and slurm.emit(made).notes == ()
    for target in ("torchrun", "kubernetes", "ray-job"):
        assert any(note.startswith("{head_node} in the command is") for note in TARGETS[target](made).notes)


@pytest.mark.parametrize(("ranks", "expected"), [("2", "MULTI_CPU"), ("1", "NO")])
def test_accelerate_is_told_of_a_job_on_the_cpu(ranks: str, expected: str, tmp_path: Path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    made = tuning(*changes("dataloader-workers=15"), machine={"device": "cpu", "num_ranks": ranks})
    path = tmp_path / "accelerate.yaml"
    emitted = TARGETS["accelerate"](made)
    path.write_text(emitted.text)
    found = config_args.load_config_from_file(str(path))
    assert (found.distributed_type, found.use_cpu) == (expected, True)
    assert any("only with MPI" in note for note in emitted.notes) == (ranks == "2")


def test_a_heading_cannot_end_its_comment() -> None:
    made = tuning(*changes("tf32"), machine={"device": "x\nrm -rf /"})
    for target in ("environment", "torchrun", "slurm", "snippet"):
        found: Emitted = TARGETS[target](made)
        assert not any(line.startswith("rm") for line in found.text.splitlines())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --numa-binding node t.py", "torchrun --numa-binding=node t.py"),
        ("torchrun t.py --numa-binding=mine", "torchrun --numa-binding=node t.py --numa-binding=mine"),
    ],
    ids=["the launcher's own value goes", "the script's stays"],
)
def test_a_launchers_words_take_the_place_of_its_own_and_of_nothing_else(command: str, expected: str) -> None:
    made = tuning(*changes("torchrun-numa-binding=node"), command=tuple(command.split()))
    assert expected in torchrun.emit(made).text


def test_a_command_that_calls_srun_is_not_started_by_another() -> None:
    made = tuning(*changes("nccl-sockets=2x2+8"), command=("srun", "torchrun", "t.py"))
    text = slurm.emit(made).text
    assert "srun torchrun t.py" in text and "srun srun" not in text
    assert "#SBATCH --ntasks-per-node=1" in text


def test_a_table_for_nccl_is_applied_by_flatout_run_where_the_ranks_compare_it() -> None:
    table = {
        "NCCL_TUNER_PLUGIN": str(plugin_folder() / "libnccl-tuner-flatout-0123.so"),
        "FLATOUT_NCCL_TABLE": "/t/nccl-table.txt",
    }
    settings_only = setting(MEASURED, environment={"NCCL_BUFFSIZE": "1048576"})
    with_table = setting(MEASURED, environment=table)
    assert not tuning(settings_only).needs_run
    assert environment.emit(tuning(settings_only)).notes == ()
    assert tuning(with_table).needs_run
    assert "flatout run" in torchrun.emit(tuning(with_table)).text
    [note] = environment.emit(tuning(with_table)).notes
    assert "changes nothing until the ranks have compared it" in note
    assert "export FLATOUT_NCCL_TABLE=/t/nccl-table.txt" in environment.emit(tuning(with_table)).text
