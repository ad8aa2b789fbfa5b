"""A trial leaves the user's files as they were, and its script sees just what it would see without Flatout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout
from flatout.trial.outputs import Outputs, output_notes, settle_outputs

pytestmark = pytest.mark.usefixtures("warm")

SCRIPT = Path(__file__).with_name("writes.py")
STARTUP = Path(flatout.__file__).parent / "inside" / "startup"
NAMES = ("a", "b", "c", "d", "e", "f", "g")


def filled(folder: Path) -> Path:
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.txt").write_text(f"the user's {name}")
    (folder / "log.log").write_text("the user's log\n")
    (folder / "map.bin").write_bytes(bytes(range(10)))
    for name in ("array.npy", "arrays.npz", "model.safetensors", "scripted.pt"):
        (folder / name).write_bytes(b"the user's")
    (folder / "last").symlink_to("b.txt")
    (folder / "linked.txt").symlink_to("a.txt")
    for name in ("old/inner", "older", "renamed", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "out").symlink_to("older")
    (folder / "newest").symlink_to("older")
    (folder / "d.sh").write_text("the user's")
    (folder / "d.sh").chmod(0o750)
    for name in ("old/one.txt", "old/inner/two.txt", "older/one.txt", "renamed/one.txt"):
        (folder / name).write_text("the user's one")
    return folder


def contents(folder: Path) -> dict[str, object]:
    """Names, bytes, links, modes and times of all that is in a folder."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
    return found


def run(command: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**environment, "PYTHONWARNINGS": "", "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def in_trial(command: list[str], cwd: Path, trial: Path) -> subprocess.CompletedProcess[str]:
    (trial / "recording" / ".state").mkdir(parents=True, exist_ok=True)
    variables = {"FLATOUT_RECORDING": str(trial / "recording"), "FLATOUT_DIVERT": str(trial / "saved")}
    return run(command, cwd, PYTHONPATH=str(STARTUP), FLATOUT_LIGHT="1", **variables)


def outputs_of(trial: Path, folder: Path | None = None) -> Outputs:
    """What a trial in the user's folder wrote, which is then removed; without a folder, all is the machine's."""
    return settle_outputs(trial / "recording", trial / "saved", () if folder is None else (str(folder),))


@pytest.mark.parametrize("way", ["plain", "names", "folders", "safetensors", "last", "links", "failing"])
def test_the_script_sees_what_it_would_and_the_users_files_stay(tmp_path: Path, way: str) -> None:
    alone = run([str(SCRIPT), way], filled(tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    folder = filled(tmp_path / "work")
    before = contents(folder)
    done = in_trial([str(SCRIPT), way], folder, tmp_path / "trial")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == alone.stdout.splitlines()
    assert not list((tmp_path / "trial" / "recording").glob("inside-*.log"))
    during = contents(folder)
    assert {name: during.get(name) for name in before} == before
    made = {name for name, what in during.items() if what != "folder"} - set(before)
    outputs = outputs_of(tmp_path / "trial", folder)
    assert made <= {str(Path(path).relative_to(folder)) for path in outputs.wrote if Path(path).is_relative_to(folder)}
    assert contents(folder) == before


def test_a_second_trial_starts_from_the_users_files(tmp_path: Path) -> None:
    folder = filled(tmp_path / "work")
    before = contents(folder)
    code = "import torch; print(open('log.log').read(), end=''); open('log.log', 'a').write('more\\n')"
    code += "; open('new.csv', 'a').write('row\\n')"
    both = Outputs()
    for trial in (tmp_path / "trial1", tmp_path / "trial2"):
        assert in_trial(["-c", code], folder, trial).stdout == "the user's log\n"
        assert (folder / "new.csv").read_text() == "row\n"  # the second trial does not find that of the first
        both |= outputs_of(trial, folder)
        assert contents(folder) == before
    assert output_notes(both) == (
        f"the trials would have overwritten or removed 1 of your files, which are unchanged: {folder}/log.log",
        f"the trials wrote 1 new file, kept apart and then removed: {folder}/new.csv",
    )


def test_what_one_rank_saves_another_finds(tmp_path: Path) -> None:
    """Two processes of one trial: the second loads what the first has saved over the user's file."""
    folder = filled(tmp_path / "work")
    first = "import torch, os; torch.save(1, 'model.pt'); torch.save(2, 'a.txt'); os.remove('b.txt')"
    second = "import torch, os; print(torch.load('model.pt'), torch.load('a.txt'), os.path.exists('b.txt'))"
    for code in (first, second):
        done = in_trial(["-c", code], folder, tmp_path / "trial")
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "2", "False"]


@pytest.mark.usefixtures("cold")
def test_before_torch_is_imported_files_are_the_users_too(tmp_path: Path) -> None:
    """Modules are imported in the order of the alphabet: names out of `os` and `shutil` come before torch."""
    folder = filled(tmp_path / "work")
    before = contents(folder)
    code = """if True:
        from os import listdir, remove, rename
        from shutil import rmtree
        rmtree("old")
        open("a.txt", "w").write("new")
        import torch
        torch.save(1, "model.pt")
        remove("b.txt")
        rename("c.txt", "d.txt")
        print([name in listdir(".") for name in ("old", "b.txt", "c.txt", "model.pt")])
        remove("model.pt")
        print("model.pt" in listdir("."))
    """
    done = in_trial(["-c", code], folder, tmp_path / "trial")
    assert (done.returncode, done.stdout) == (0, "[False, False, False, True]\nFalse\n"), done.stderr
    assert contents(folder) == before
    assert not list((tmp_path / "trial" / "recording").glob("inside-*.log"))


def test_ranks_remove_one_tree_at_the_same_time(tmp_path: Path) -> None:
    """With `ignore_errors` the slower one has none."""
    folder = filled(tmp_path / "work")
    before = contents(folder)
    code = """if True:
        import torch, os, shutil, time
        original = os.remove
        def remove(path):
            original(path)  # the other rank was faster
            original(path)
        os.makedirs("old/new")
        open("old/new/1.txt", "w").close()
        os.remove = remove
        shutil.rmtree("old", ignore_errors=True)
        os.remove = original
        print(os.path.exists("old"))
        failed = []
        os.makedirs("older/new")
        open("older/new/1.txt", "w").close()
        os.remove = remove
        shutil.rmtree("older", onerror=lambda function, path, error: failed.append(error[0].__name__))
        print(failed)
    """
    done = in_trial(["-c", code], folder, tmp_path / "trial")
    assert (done.returncode, done.stdout) == (0, "False\n['FileNotFoundError']\n"), done.stderr
    assert contents(folder) == before


def test_large_files_changed_in_place_are_told(tmp_path: Path) -> None:
    folder = filled(tmp_path / "work")
    with (folder / "large.bin").open("wb") as file:
        file.truncate((256 << 20) + 1)
    code = "import torch; f = open('large.bin', 'r+b'); f.write(b'1'); f.close(); open('large.bin').close()"
    assert in_trial(["-c", code], folder, tmp_path / "trial").returncode == 0
    outputs = outputs_of(tmp_path / "trial")
    assert outputs.in_place == {str(folder / "large.bin")}
    assert "too large to be copied first, so check them" in output_notes(outputs)[0]


def test_the_folders_of_a_trial_are_removed_with_all_that_is_in_them_and_the_users_are_not(tmp_path: Path) -> None:
    folder = filled(tmp_path / "work")
    (folder / "theirs").mkdir()
    before = contents(folder)
    code = """if True:
        import torch, os, json
        for name in ("ours", "theirs", "run/inner", "data"):
            os.makedirs(name, exist_ok=True)
            json.dump({}, open(name + "/config.json", "w"))
            if name != "data":
                torch.save(1, name + "/model.pt")
        os.system("echo from another program > ours/tokenizer.json")
    """
    assert in_trial(["-c", code], folder, tmp_path / "trial").returncode == 0
    outputs = outputs_of(tmp_path / "trial", folder)
    assert contents(folder) == before
    new = {f"{name}/config.json" for name in ("ours", "theirs", "run/inner", "data")}
    assert {str(Path(path).relative_to(folder)) for path in outputs.wrote} == new
    assert output_notes(outputs)[0].startswith("the trials wrote 4 new files, kept apart and then removed: ")


def test_new_files_in_the_folder_that_the_machine_shares_stay_and_are_named(tmp_path: Path) -> None:
    """As with a cache that a library keeps in /tmp: no other process of the machine may lose it."""
    code = "import torch; open('cache.json', 'w').write('x')"
    assert in_trial(["-c", code], tmp_path, tmp_path / "trial").returncode == 0
    outputs = outputs_of(tmp_path / "trial")
    assert (tmp_path / "cache.json").read_text() == "x"
    assert output_notes(outputs) == (
        f"1 file changed during the trials and could not be kept apart: {tmp_path}/cache.json",
    )


def test_libraries_and_caches_and_pipes_are_left_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "index.json").write_text("old")
    code = """if True:
        import torch, os
        open(os.path.join(os.environ["XDG_CACHE_HOME"], "index.json"), "w").write("new")
        open("/dev/null", "w").write("x")
        os.mkfifo("pipe")
        read = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
        open("pipe", "w").write("through")
        print(os.read(read, 100))
    """
    (tmp_path / "trial" / "recording" / ".state").mkdir(parents=True)
    variables = {
        "FLATOUT_RECORDING": str(tmp_path / "trial/recording"),
        "FLATOUT_DIVERT": str(tmp_path / "trial/saved"),
    }
    done = run(["-c", code], tmp_path, PYTHONPATH=str(STARTUP), XDG_CACHE_HOME=str(cache), **variables)
    assert (done.returncode, done.stdout) == (0, "b'through'\n"), done.stderr
    assert (cache / "index.json").read_text() == "new"
    assert outputs_of(tmp_path / "trial", tmp_path) == Outputs(wrote=frozenset({f"{tmp_path}/pipe"}))
    assert not (tmp_path / "pipe").exists()


def test_a_file_that_may_not_be_written_is_an_error_as_ever(tmp_path: Path) -> None:
    folder = filled(tmp_path / "work")
    code = "import torch; open('old', 'w')"
    done = in_trial(["-c", code], folder, tmp_path / "trial")
    assert done.returncode == 1
    assert "IsADirectoryError" in done.stderr


def test_a_killed_line_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    (tmp_path / "saved").mkdir()
    line = {"path": str(tmp_path / "x"), "kind": "new", "existed": False}
    (tmp_path / "x").write_text("x")
    (tmp_path / "recording" / "diverted-host-1.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])
    assert outputs_of(tmp_path).left == {str(tmp_path / "x")}


@pytest.mark.parametrize("kind", ["a link to itself", "a pipe", "a folder"])
def test_a_record_of_outputs_that_is_no_file_is_left_out(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "recording" / "diverted-node-7.jsonl"
    path.parent.mkdir()
    match kind:
        case "a link to itself":
            path.symlink_to(path)
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
    assert settle_outputs(path.parent, tmp_path / "saved") == Outputs()
