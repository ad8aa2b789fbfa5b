"""`tune`, `profile` and `run` killed by SIGKILL at random moments: is the user's folder as it was, and is it told?

    PYTHONPATH=src:. python benchmarks/random_kills.py [--kills 100] [--minutes 30] [--seed 1] [--out FILE]

Each kill begins with a fresh folder of a user: a script, its data, a checkpoint, a log and a file of notes, all hashed.
The script appends to its log and replaces its checkpoint, as scripts do. Either the Flatout process alone gets SIGKILL,
or its whole process group. Afterwards

- nothing in the folder has changed but what the script itself writes (for `profile` and `run`: its log and its
  checkpoint; for `tune`: nothing), and nothing is new but `flatout-out`;
- of a tuning, no process is left after half a minute;
- of `profile` and `run`, the job lives on if Flatout alone was killed, and the next `flatout run` in the folder says so
  if and only if it lives.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from benchmarks.kept_result import keep, kill_options

SCRIPT = """
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset

rows = torch.frombuffer(bytearray(open("data.bin", "rb").read()), dtype=torch.float32).reshape(-1, 8)
model = torch.nn.Linear(8, 1)
if os.path.exists("out/model.pt"):
    model.load_state_dict(torch.load("out/model.pt"))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end = time.monotonic() + 30
step = 0
while time.monotonic() < end:
    for (row,) in DataLoader(TensorDataset(rows), batch_size=16):
        optimizer.zero_grad()
        model(row).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
        step += 1
        if step % 20 == 0:
            torch.save(model.state_dict(), "out/model.pt.new")
            os.replace("out/model.pt.new", "out/model.pt")
            with open("log.csv", "a") as log:
                log.write(f"{step}\\n")
"""
WRITTEN_BY_SCRIPT = {"log.csv", "out/model.pt", "out/model.pt.new"}
COMMANDS = ("tune", "profile", "run")
LATEST_S = {"tune": 25.0, "profile": 10.0, "run": 8.0}
GUARD_S = 30.0
SAYS = "was killed is still running"


@dataclass
class Kill:
    """One kill, and what was wrong afterwards."""

    command: str
    target: str  # flatout: that process alone; group: all that it started in its process group, too
    after_s: float
    job_lived_on: bool
    wrong: list[str]


def make_folder(folder: Path) -> None:
    (folder / "out").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "data.bin").write_bytes(bytes(8 * 4 * 512))
    (folder / "log.csv").write_text("step\n")
    (folder / "notes.md").write_text("do not touch\n")


def hashes(folder: Path) -> dict[str, str]:
    """Return the content of each file of the user by its path, and of each link where it points."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] == "flatout-out":
            continue
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


def job_processes(temporary: Path) -> list[psutil.Process]:
    """Return the living Python processes that run the script or wait for it, by a variable that all inherit."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_ours = process.environ().get("TMPDIR") == str(temporary)
            runs_script = "train.py" in process.cmdline()[1:] and "flatout" not in process.cmdline()
            if is_ours and runs_script and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_once(command: str, place: Path, chance: random.Random, environment: dict[str, str]) -> Kill:
    folder, temporary = place / "user", place / "temporary"
    make_folder(folder)
    temporary.mkdir()
    environment = {**environment, "TMPDIR": str(temporary), "XDG_STATE_HOME": str(place / "state")}
    options = ["--no-history", "--budget", "5m"] if command == "tune" else []
    options += ["--max-restarts", "1"] if command == "run" and chance.random() < 0.5 else []
    before = hashes(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", command, *options, "--", sys.executable, "train.py"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    after_s = chance.uniform(0.2, LATEST_S[command])
    time.sleep(after_s)
    target = "flatout" if chance.random() < 0.7 else "group"
    if target == "flatout":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wrong = []
    if command == "tune":
        deadline = time.monotonic() + GUARD_S
        while job_processes(temporary) and time.monotonic() < deadline:
            time.sleep(0.2)
    else:
        time.sleep(0.3)
    lives_on = bool(job_processes(temporary))
    if command == "tune" and lives_on:
        wrong.append("processes of the tuning are left")
    if command != "tune":
        wrong += wrong_report(folder, temporary, environment, lives_on=lives_on)
    end_all(temporary)
    wrong += wrong_files(before, hashes(folder), set() if command == "tune" else WRITTEN_BY_SCRIPT)
    return Kill(command, target, round(after_s, 2), lives_on, wrong)


def wrong_report(folder: Path, temporary: Path, environment: dict[str, str], *, lives_on: bool) -> list[str]:
    told = subprocess.run(
        [sys.executable, "-m", "flatout", "run", "--", "true"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if lives_on != bool(job_processes(temporary)):  # it ended meanwhile: either answer was right
        return []
    if (SAYS in told.stderr) != lives_on:
        return [f"the job {'lives' if lives_on else 'does not live'} on, and the next run said: {told.stderr.strip()}"]
    return []


def wrong_files(before: dict[str, str], after: dict[str, str], may_change: set[str]) -> list[str]:
    changed = [name for name in before if before[name] != after.get(name) and name not in may_change]
    new = [name for name in after if name not in before and name not in may_change]
    return [f"changed: {name}" for name in changed] + [f"new: {name}" for name in new]


def end_all(temporary: Path) -> None:
    """End what the killed command left, so that the next one begins on a quiet machine."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("TMPDIR") == str(temporary):
                process.kill()


def main() -> int:
    given = kill_options(__doc__, kills=100, seed=1).parse_args()
    chance = random.Random(given.seed)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    environment["OMP_NUM_THREADS"] = "1"
    until = time.monotonic() + 60 * given.minutes
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as name:
        while len(kills) < given.kills and time.monotonic() < until:
            command = COMMANDS[len(kills) % len(COMMANDS)]
            kills.append(kill_once(command, Path(name) / str(len(kills)), chance, environment))
            print(json.dumps(asdict(kills[-1])), file=sys.stderr, flush=True)
    table = collections.Counter((kill.command, kill.target, kill.job_lived_on) for kill in kills)
    result = {
        "asked for": given.kills,
        "kills": len(kills),
        "seed": given.seed,
        "wrong": [asdict(kill) for kill in kills if kill.wrong],
        "table": [
            {"command": command, "killed": target, "job lived on": lives, "number": number}
            for (command, target, lives), number in sorted(table.items())
        ],
    }
    keep(result, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
