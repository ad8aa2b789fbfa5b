"""The commands of a comparison: what they are, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flatout.compare.arms import arm_environment, arm_request
from flatout.compare.request import compare_arms, recordings_of
from flatout.errors import FlatoutError


def test_variables_before_a_command_are_for_that_arm() -> None:
    request = arm_request("B", "NCCL_ALGO=Ring A=1=2 torchrun train.py --x 'a b'", ())
    assert request.command == ("torchrun", "train.py", "--x", "a b")
    assert request.variables == {"NCCL_ALGO": "Ring", "A": "1=2"}
    environment = arm_environment(request, {"A": "0", "PATH": "/bin"}, {})
    assert (environment["A"], environment["NCCL_ALGO"], environment["PATH"]) == ("1=2", "Ring", "/bin")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`--a` must be a command, but is empty"),
        ("  ", "`--a` must be a command, but is empty"),
        ("A=1", "`--a` must be a command, but is empty"),
        ("python 'train.py", "`--a` cannot be parsed as a command: no closing quotation: python 'train.py"),
        ("cd x && python t.py", "`--a` is run without a shell, but has `&&`"),
        ("python t.py > log", "`--a` is run without a shell, but has `>`"),
        ("A=1; python t.py", "`--a` is run without a shell, but has `A=1;`"),
    ],
)
def test_a_command_that_cannot_be_run_is_one_line(text: str, message: str) -> None:
    with pytest.raises(FlatoutError) as raised:
        arm_request("A", text, ())
    assert str(raised.value) == message


def environment_folder(folder: Path, *programs: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    for name in ("python", *programs):
        (folder / "bin" / name).symlink_to(sys.executable)
    return folder


def test_a_python_environment_comes_first_on_the_path(tmp_path: Path) -> None:
    folder = environment_folder(tmp_path / "env", "torchrun")
    for given in (folder, folder / "bin" / "python"):
        request = arm_request("A", "torchrun train.py", (), python=given)
        environment = arm_environment(request, {"PATH": "/bin", "PYTHONHOME": "/x"}, {})
        assert environment["PATH"] == f"{folder}/bin:/bin"
        assert environment["VIRTUAL_ENV"] == str(folder)
        assert "PYTHONHOME" not in environment
    (folder / "conda-meta").mkdir()
    assert arm_environment(request, {}, {})["CONDA_PREFIX"] == str(folder)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("{elsewhere}/python t.py", "the command starts {elsewhere}/python, so `--a-python` would have no effect"),
        ("accelerate launch t.py", "`accelerate` is not in {env}/bin"),
    ],
)
def test_a_command_that_would_start_in_another_environment_is_refused(
    tmp_path: Path, command: str, message: str
) -> None:
    env = environment_folder(tmp_path / "env")
    elsewhere = tmp_path / "other" / "bin"
    names = {"{elsewhere}": str(elsewhere), "{env}": str(env)}
    for before, after in names.items():
        command, message = command.replace(before, after), message.replace(before, after)
    with pytest.raises(FlatoutError) as raised:
        arm_request("A", command, (), python=env)
    assert str(raised.value) == message


def test_a_folder_that_is_no_environment_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError) as raised:
        arm_request("B", "python t.py", (), python=tmp_path)
    assert str(raised.value) == f"`--b-python` must be a Python environment, but {tmp_path}/bin/python cannot be run"


def test_modules_of_the_repository_are_found_in_the_worktree(tmp_path: Path) -> None:
    """Also those of `PYTHONPATH`; the standard library stays where it is."""
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    for folder in (repository, tree):
        (folder / "src").mkdir(parents=True)
    request = arm_request("A", f"{sys.executable} -c pass", ())
    before = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{repository}/src:{tmp_path}"}
    environment = arm_environment(request, before, {str(repository): str(tree)})
    assert environment["PYTHONPATH"].split(":") == [f"{tree}/src", f"{repository}/src", str(tmp_path)]


NOTHING = (None, None)


@pytest.mark.parametrize(
    ("words", "commands", "message"),
    [
        ((), ("a", None), "`--b` is missing, and there is no command after `--`"),
        ((), (None, "b"), "`--a` is missing, and there is no command after `--`"),
        (("python", "t.py"), ("a", "b"), "`--a` and `--b` are the commands, so there must be none after `--`"),
    ],
)
def test_which_arm_has_no_command(
    words: tuple[str, ...], commands: tuple[str | None, str | None], message: str
) -> None:
    with pytest.raises(FlatoutError) as raised:
        compare_arms(words, commands=commands, refs=NOTHING, pythons=NOTHING)
    assert str(raised.value) == message


def test_one_command_serves_both_arms() -> None:
    a, b = compare_arms(("python", "t.py"), commands=(None, "python u.py"), refs=("main", None), pythons=NOTHING)
    assert (a.command, a.ref, b.command, b.ref) == (("python", "t.py"), "main", ("python", "u.py"), None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "two commands or two recordings are needed"),
        (("python", "t.py"), "two recordings or two commands are needed, but there is no python"),
        (("a", "b", "c"), "one command alone cannot be compared"),
    ],
)
def test_without_options_two_recordings_are_needed(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(FlatoutError) as raised:
        recordings_of(words, (None,))
    assert str(raised.value) == message


def test_two_paths_are_recordings_unless_an_option_is_given(tmp_path: Path) -> None:
    assert recordings_of((str(tmp_path), str(tmp_path)), (None,)) == (tmp_path, tmp_path)
    assert recordings_of((str(tmp_path), str(tmp_path)), ("main",)) is None
