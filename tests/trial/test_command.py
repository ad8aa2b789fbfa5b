"""What a trial is started with: words for launchers, arguments of the script, variables, folders of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.errors import UsageError
from flatout.records.change import Argument, ChangeSet, Patch
from flatout.trial.command import describe, keeps_outputs_apart, trial_command

HERE = Path("/runs/trial-007/files")


def words(command: str, **changes: object) -> list[str]:
    return list(trial_command(command.split(), ChangeSet(**changes), HERE).words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("launcher", "added", "command", "expected"),
    [
        ("torchrun", "--numa-binding=node", "torchrun -n 2 t.py -b 8", "torchrun --numa-binding=node -n 2 t.py -b 8"),
        ("torchrun", "--numa-binding=node", "/opt/bin/torchrun t.py", "/opt/bin/torchrun --numa-binding=node t.py"),
        (
            "torchrun",
            "--numa-binding=node",
            "python -m torch.distributed.run --standalone t.py",
            "python -m torch.distributed.run --numa-binding=node --standalone t.py",
        ),
        (
            "torchrun",
            "--numa-binding=node",
            "srun -N 2 torchrun --nnodes 2 t.py",
            "srun -N 2 torchrun --numa-binding=node --nnodes 2 t.py",
        ),
        ("srun", "--cpu-bind=cores", "srun -N 2 python t.py", "srun --cpu-bind=cores -N 2 python t.py"),
    ],
)
def test_words_for_a_launcher_come_right_behind_it(launcher: str, added: str, command: str, expected: str) -> None:
    assert words(command, launch={launcher: (added,)}) == expected.split()


@pytest.mark.parametrize(
    "old", ["--numa-binding=socket", "--numa-binding socket", "--numa_binding=socket", "--numa_binding socket"]
)
def test_the_users_own_value_is_exchanged_since_a_launcher_takes_the_last(old: str) -> None:
    changed = words(f"torchrun {old} --standalone t.py", launch={"torchrun": ("--numa-binding=node",)})
    assert changed == ["torchrun", "--numa-binding=node", "--standalone", "t.py"]


@pytest.mark.parametrize(
    ("launcher", "added", "command"),
    [
        ("torchrun", "--numa-binding=node", "torchrun t.py --numa-binding=mine"),
        ("torchrun", "--numa-binding=node", "torchrun -m pkg.train --numa-binding=mine"),
        ("srun", "--cpu-bind=cores", "srun torchrun t.py --cpu-bind=mine"),
    ],
)
def test_arguments_of_the_script_stay_though_they_are_called_the_same(launcher: str, added: str, command: str) -> None:
    first, rest = command.split(" ", 1)
    assert words(command, launch={launcher: (added,)}) == [first, added, *rest.split()]


def test_a_launcher_that_is_not_called_is_one_line() -> None:
    with pytest.raises(UsageError, match="a change adds --cpu-bind=cores to srun, which the command does not call"):
        words("torchrun t.py", launch={"srun": ("--cpu-bind=cores",)})


def test_the_trials_own_folder_is_put_in_wherever_it_is_asked_for() -> None:
    command = "python t.py --out {trial_dir} --log={trial_dir}/log"
    assert words(command) == ["python", "t.py", "--out", str(HERE), f"--log={HERE}/log"]
    assert keeps_outputs_apart(command.split())
    assert not keeps_outputs_apart(["python", "t.py", "--out", "trial_dir"])


def test_arguments_are_exchanged_or_added() -> None:
    changes = (Argument(words=(("--batch", "16"),)), Argument(words=(("--accumulate=2",),)))
    assert words("python t.py --batch 8 --lr 1", arguments=changes) == (
        ["python", "t.py", "--batch", "16", "--lr", "1", "--accumulate=2"]
    )


def test_without_changes_the_command_is_as_it_was() -> None:
    made = trial_command(["python", "t.py", "a b", ""], ChangeSet(), HERE)
    assert (made.words, made.variables) == (("python", "t.py", "a b", ""), {})


def test_patches_and_variables_are_handed_on_in_the_environment() -> None:
    patches = (Patch(name="dataloader", parameters={"num_workers": 4}), Patch(name="tf32"))
    made = trial_command(["python", "t.py"], ChangeSet(environment={"A": "1"}, patches=patches), HERE)
    assert made.variables["A"] == "1"
    assert json.loads(made.variables["FLATOUT_PATCHES"]) == [
        {"name": "dataloader", "parameters": {"num_workers": 4}},
        {"name": "tf32", "parameters": {}},
    ]


def test_a_described_command_can_be_typed() -> None:
    assert describe({"A": "x y"}, ["python", "it's.py"]) == "A='x y' python 'it'\"'\"'s.py'"
