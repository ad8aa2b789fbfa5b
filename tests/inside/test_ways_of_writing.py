"""Whatever a trial writes, by whatever road, is apart from the user's files; and the next trial sees none of it.

A row of the matrix is a way of writing (see `ways_of_writing`); its columns are a new file, a file of the user's, and
files in a new folder and in a folder of the user's. The matrix is run once for each method of separation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.inside.test_divert import STARTUP, contents

import flatout
from flatout.records.tuning import Separation
from flatout.trial.outputs import Outputs, ran_outside
from flatout.tune.trial_files import TrialFiles, settle_interrupted

pytestmark = pytest.mark.usefixtures("warm")

SCRIPT = Path(__file__).with_name("ways_of_writing.py")
RESUMES = Path(__file__).with_name("resumes.py")
LOOK = Path(__file__).with_name("digests.py")
SOURCE = Path(flatout.__file__).parents[1]
COLUMNS = ("{}-new", "{}-old", "{}-new-folder/inner/file", "{}-folder/file", "{}-folder/old")
# Other programs and compiled libraries: hooks in Python do not see them.
UNSEEN_BY_HOOKS = ("shell", "copying-program", "c-library")
METHODS = {
    "mount namespace": Separation(method="overlay", needs_user=False),
    "user namespace": Separation(method="overlay", needs_user=True),
    "hooks": Separation(method="hooks"),
}


class Trials:
    """Runs a script as the trials of a tuning whose folder is in the working folder, where users have it."""

    def __init__(self, folder: Path, separation: Separation) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
        method, needs_user = separation.method, separation.needs_user
        self.separation = Separation(method=method, needs_user=needs_user, folders=(str(folder),))
        self.files = TrialFiles(self.out, self.separation, self.environment)
        self.number = 0
        self.reads: dict[str, str | None] = {}

    def run(self, script: Path, *words: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """Run the script in a trial; return what it printed, line by line."""
        trial = self.out / "runs" / f"trial-{self.number:03d}"
        self.number += 1
        (trial / "recording" / ".state").mkdir(parents=True)
        command, apart = self.files.prepare(trial, [sys.executable, str(script), *words])
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={
                **self.environment,
                "PYTHONPATH": str(STARTUP),
                "FLATOUT_RECORDING": str(trial / "recording"),
                "FLATOUT_LIGHT": "1",
                "OMP_NUM_THREADS": "1",
                **apart,
                **(variables or {}),
            },
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        problem = self.files.problem(trial)
        if problem is not None and "the kernel refuses" in problem:
            pytest.skip(problem)  # as in a container; the other methods are tested there
        assert (done.returncode, problem) == (0, None), done.stderr
        reads = self.files.settle(trial)
        self.reads = {os.path.relpath(read.path, self.folder): read.writer for read in reads}
        assert sorted(path.name for path in trial.iterdir()) == ["recording"]
        return done.stdout.splitlines()

    @property
    def outputs(self) -> Outputs:
        return self.files.outputs


@pytest.fixture(scope="module")
def users_files(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that were written by the same ways."""
    folder = tmp_path_factory.mktemp("users")
    subprocess.run([sys.executable, str(SCRIPT), "the-users"], cwd=folder, check=True, capture_output=True)
    return folder


def ways() -> list[str]:
    source = SCRIPT.read_text()
    names = [line.split("(")[0].removeprefix("def ") for line in source.splitlines() if line.startswith("def ")]
    return [name.replace("_", "-") for name in names if name not in ("way", "padded", "digests", "main")]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_trial_writes_is_apart_and_the_next_trial_sees_none_of_it(
    users_files: Path, tmp_path: Path, method: str, request: pytest.FixtureRequest
) -> None:
    if method == "user namespace":
        request.getfixturevalue("cold")  # the program that overlays folders is followed by the command, as for users
    folder = tmp_path / "work"
    shutil.copytree(users_files, folder, symlinks=True)
    before = contents(folder)
    trials = Trials(folder, METHODS[method])
    first_sees, wrote = trials.run(SCRIPT, "first")
    # In the trial itself, each way has worked: the script reads back what it wrote.
    cells = {column.format(name) for name in ways() for column in COLUMNS}
    assert len(ways()) >= 50
    assert cells - set(json.loads(wrote)) <= {cell for cell in cells if cell.startswith("torch-jit-save")}
    unseen = UNSEEN_BY_HOOKS if method == "hooks" else ()
    after = {name: content for name, content in contents(folder).items() if name.split("/")[0] != "out"}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name for name in changed if not name.startswith(unseen or ("-",))} == set()
    left = {str(Path(path).relative_to(folder)) for path in trials.outputs.left}
    assert left == {name for name in changed if after.get(name) not in (None, "folder")}
    (second_sees,) = trials.run(LOOK)
    if method != "hooks":
        assert second_sees == first_sees
        assert not trials.reads and not left
    else:
        # The net below: every file that could not be kept apart, and that the second trial read, is named.
        assert trials.reads == dict.fromkeys(left, "trial 0")
        assert {name.removesuffix("-old") for name in left if name.endswith("-old")} == set(UNSEEN_BY_HOOKS)


@pytest.mark.parametrize("way", ["replaced", "bytes", "last"])
@pytest.mark.parametrize("method", ["user namespace", "hooks"])
def test_no_trial_resumes_from_what_another_saved(tmp_path: Path, method: str, way: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    trials = Trials(folder, METHODS[method])
    for _ in range(2):
        assert trials.run(RESUMES, way) == ["start at 0", "saved 20"]
        assert [path.name for path in folder.iterdir()] == ["out"]
    assert not trials.reads


def test_a_killed_tuning_leaves_nothing_that_its_guard_or_its_successor_does_not_remove(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "users.txt").write_text("the user's")
    trials = Trials(folder, METHODS["hooks"])
    trials.files.settle = lambda trial: ()  # type: ignore[method-assign]  # as if killed before
    with pytest.raises(AssertionError):  # the files of the trial are still there
        trials.run(RESUMES, "last")
    assert sorted(path.name for path in folder.iterdir()) == ["lightning_logs", "out", "users.txt"]
    clean_up = [sys.executable, "-m", "flatout.tune.trial_files", str(trials.out)]
    subprocess.run(clean_up, cwd=folder, env={**trials.environment, "PYTHONPATH": str(SOURCE)}, check=True)
    assert sorted(path.name for path in folder.iterdir()) == ["out", "users.txt"]
    assert sorted(path.name for path in (trials.out / "runs" / "trial-000").iterdir()) == ["recording"]


def test_what_changed_long_after_a_killed_trial_is_the_users(tmp_path: Path) -> None:
    """Also if a folder of somebody else says that a trial wrote it."""
    folder = tmp_path / "work"
    trial = folder / "out" / "runs" / "trial-000"
    (trial / "saved").mkdir(parents=True)
    (trial / "saved" / ".began").touch()
    (trial / "recording").mkdir()
    theirs, ours = folder / "thesis.txt", folder / "of_the_trial.txt"
    lines = [json.dumps({"path": str(path), "kind": "new", "existed": False}) for path in (theirs, ours)]
    (trial / "recording" / "diverted-host-1.jsonl").write_text("\n".join(lines) + "\n")
    ours.write_text("x")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flatout.tune.trial_files._LAST_MOMENT_NS", 200_000_000)
        time.sleep(0.4)
        theirs.write_text("the user's")
        patched.chdir(folder)
        settle_interrupted(folder / "out")
    assert theirs.read_text() == "the user's" and not ours.exists()


def test_an_overlaid_folder_is_listed_by_what_was_written_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("overwritten.txt", "removed.txt", "untouched.txt"):
        (folder / name).write_text("the user's")
    script = tmp_path / "script.py"
    script.write_text("import os\nfor name in ('new', 'overwritten'): open(name + '.txt', 'w').write('x')\n")
    with script.open("a") as file:
        file.write("os.remove('removed.txt')\nos.mkdir('made')\nos.symlink('new.txt', 'made/link')\n")
    trials = Trials(folder, METHODS["user namespace"])
    trials.run(script)
    assert trials.outputs == Outputs(
        overwritten=frozenset({f"{folder}/overwritten.txt"}),
        removed=frozenset({f"{folder}/removed.txt"}),
        wrote=frozenset({f"{folder}/new.txt", f"{folder}/made/link"}),
    )
    names = ["out", "overwritten.txt", "removed.txt", "untouched.txt"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_process_outside_the_overlay_reports_it_and_is_kept_apart_by_hooks(tmp_path: Path) -> None:
    """As a process that a scheduler starts: it has the variables of the job, but not its mounts."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "users.txt").write_text("the user's")
    script = tmp_path / "script.py"
    script.write_text("open('users.txt', 'w').write('x'); open('new.txt', 'w').write('x')\n")
    trials = Trials(folder, METHODS["hooks"])
    for number, host in enumerate(("another-node", os.uname().nodename)):
        apart = {"host": host, "folders": {str(folder): 0}}
        trials.run(script, variables={"FLATOUT_APART": json.dumps(apart)})
        assert ran_outside(trials.out / "runs" / f"trial-{number:03d}" / "recording")
    assert (folder / "users.txt").read_text() == "the user's"
    assert sorted(path.name for path in folder.iterdir()) == ["out", "users.txt"]


def test_caches_and_the_folder_of_the_tuning_are_shared_within_an_overlaid_folder(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "cache = os.path.join(os.environ['HF_HOME'], 'index')\n"
        "print(os.path.exists(cache), os.path.exists('plain'))\n"
        "open(cache, 'w').write('x'); open('plain', 'w').write('x')\n"
    )
    trials = Trials(folder, METHODS["user namespace"])
    trials.environment["HF_HOME"] = str(folder / "hub")
    assert trials.run(script) == ["False False"]
    assert trials.run(script) == ["True False"]
    assert sorted(path.name for path in folder.iterdir()) == ["hub", "out"]
    assert not trials.reads


@pytest.mark.parametrize("method", ["user namespace", "hooks"])
def test_a_file_that_the_machine_shares_and_an_earlier_trial_wrote_is_named(tmp_path: Path, method: str) -> None:
    """The temporary folder of the machine is shared: there a second trial finds what the first has left."""
    folder, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\npath = sys.argv[1]\n"
        "print(os.path.exists(path))\n"
        "if os.path.exists(path): open(path).read()\n"
        "open(path, 'w').write('state')\n"
        "open(path).read()\n"
    )
    trials = Trials(folder, METHODS[method])
    assert trials.run(script, str(elsewhere / "h.pt")) == ["False"]
    assert not trials.reads  # it may read what it has written itself
    assert trials.run(script, str(elsewhere / "h.pt")) == ["True"]
    assert trials.reads == {"../elsewhere/h.pt": "trial 0"}


@pytest.mark.parametrize(
    ("name", "is_noticed"), [("data.txt", True), (".git/index", False), ("before.txt", False), ("out/x.txt", True)]
)
def test_a_file_that_somebody_changes_during_the_tuning_is_named(tmp_path: Path, name: str, is_noticed: bool) -> None:
    folder = tmp_path / "work"
    (folder / ".git").mkdir(parents=True)
    (folder / "before.txt").write_text("x")
    trials = Trials(folder, METHODS["hooks"])
    if name != "before.txt":
        (folder / name).write_text("x")
    script = tmp_path / "script.py"
    script.write_text("import sys; open(sys.argv[1]).read()\n")
    trials.run(script, name)
    assert trials.reads == ({name: None} if is_noticed else {})
