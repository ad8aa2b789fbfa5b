"""What a launcher was told, as torchrun itself reads it: by its arguments, else by its PET_ variables."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from flatout.change.launchers import calls, first_launcher, launch_value

DEFAULTS = {"nnodes": "1:1", "rdzv_id": "none", "max_restarts": 0, "rdzv_endpoint": ""}


@pytest.mark.parametrize("flag", ["nnodes", "rdzv-id", "max-restarts", "rdzv-endpoint"])
@pytest.mark.parametrize(
    "variables", [{}, {"nnodes": "3", "rdzv_id": "x", "max_restarts": "5", "rdzv_endpoint": "h:1"}]
)
@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--nnodes=9", "--max-restarts=9"],
        ["--nnodes=1:4", "--rdzv_id", "a", "--max-restarts=2", "--max_restarts=7", "--rdzv-endpoint=n:2", "train.py"],
    ],
)
def test_it_is_what_torchrun_itself_takes(
    words: list[str], variables: dict[str, str], flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = flag.replace("-", "_")
    environment = {f"PET_{key.upper()}": value for key, value in variables.items()}
    for key in DEFAULTS:
        monkeypatch.delenv(f"PET_{key.upper()}", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    theirs = getattr(get_args_parser().parse_args(words), name)
    ours = launch_value(["torchrun", *words], "torchrun", f"--{flag}", environment)
    assert str(theirs) == str(DEFAULTS[name] if ours is None else ours)


def test_a_variable_of_torchrun_is_no_other_launchers() -> None:
    assert launch_value(["python", "train.py"], "torchrun", "--nnodes", {"PET_NNODES": "2"}) is None
    assert launch_value(["srun", "train.py"], "srun", "--nnodes", {"PET_NNODES": "2"}) is None
    assert launch_value(["srun", "torchrun", "train.py"], "torchrun", "--nnodes", {"PET_NNODES": "2"}) == "2"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 8 train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        ("srun -N 2 accelerate launch train.py", "srun"),
        ("/opt/venv/bin/deepspeed --num_gpus 8 train.py --deepspeed ds.json", "deepspeed"),
        ("mpirun -np 16 python train.py", "mpirun"),
        ("mpiexec -n 16 python -m torch.distributed.run train.py", "mpirun"),
        ("python train.py --launcher torchrun", None),
        ("python train.py deepspeed", None),
        ("python -m pkg.train", None),
    ],
)
def test_a_launcher_is_found_before_the_script_and_not_among_its_arguments(command: str, expected: str | None) -> None:
    assert first_launcher(command.split()) == expected
    assert not calls(("python", "train.py", "--launcher", "torchrun"), "torchrun")
