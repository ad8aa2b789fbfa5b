"""Decide how a trial's files are kept apart from the user's, and prepare a command for it.

In: the user's command, the working folder and the folder of the tuning. Out: a `Separation`, which is tried once before
the first trial, and the arguments that start a trial's command in the overlay. Overlaid are the working folder and the
folders that the command names; caches and the machine's temporary folder stay shared. `outputs` reads what the trial
wrote. Nothing of the user's is changed here.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flatout.input_files import read_text
from flatout.inside.protocol import CACHE_VARIABLES, HOME_CACHES, Variable
from flatout.records.tuning import Separation

_ENTER = Path(__file__).parent.parent / "inside" / "overlay" / "enter.py"
LAYERS = "layers"  # in a trial's folder: what it wrote, by overlaid folder
REFUSAL = "refusal"
TRIED = ".overlay-"  # begins the name of a folder in which an overlay is tried
_TRY_TIMEOUT_S = 20.0
# Programs whose processes are not children of the command, or which an unprivileged mount namespace stops.
_STARTS_ELSEWHERE = frozenset(
    {"srun", "sbatch", "ssh", "pdsh", "clush", "docker", "podman", "apptainer", "singularity", "enroot", "ray"}
    | {"kubectl", "sudo", "su", "doas", "flatpak", "nerdctl", "charliecloud", "ch-run", "jsrun", "aprun", "bsub"}
)
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
_SHARED_BY_ALL = ("/", "/home", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/tmp")


def choose_separation(
    command: Sequence[str],
    out: Path,
    environment: Mapping[str, str] = os.environ,
    working_folder: str | None = None,
) -> Separation:
    """Return an overlay if this machine allows it for this command, or else hooks with the reason.

    `out` is the folder of the tuning, which exists. The overlay is tried there, with its processes at once ended. The
    command runs in `working_folder`, by default ours.
    """
    working_folder = os.path.realpath(working_folder or os.getcwd())
    named = named_folders(command, working_folder)
    hooks = Separation(folders=_outermost([working_folder, *(path for path in named if not _is_of_the_machine(path))]))
    if environment.get(Variable.OVERLAY) == "0":
        return _because(hooks, f"{Variable.OVERLAY} is 0")
    programs = [os.path.basename(word) for word in command]
    elsewhere = next((program for program in programs if program in _STARTS_ELSEWHERE), None)
    if elsewhere is not None:
        return _because(hooks, f"processes that {elsewhere} starts are outside any overlay")
    unfit = why_unfit(working_folder)
    if unfit is not None:
        return _because(hooks, unfit)
    existing = [_nearest_folder(path) for path in named]
    folders = _outermost([working_folder, *(folder for folder in existing if why_unfit(folder) is None)])
    reason = ""
    for separation in _overlays(folders, working_folder):
        reason = _refusal(separation, out, environment)
        if not reason:
            return separation
    return _because(hooks, reason)


def _overlays(folders: tuple[str, ...], working_folder: str) -> list[Separation]:
    """Return the overlays to try, the best first: of all folders; by root without a namespace of users."""
    ways = (False, True) if os.geteuid() == 0 else (True,)
    return [
        Separation(method="overlay", folders=overlaid, needs_user=needs_user)
        for overlaid in dict.fromkeys((folders, (working_folder,)))
        for needs_user in ways
    ]


def _because(hooks: Separation, reason: str) -> Separation:
    return Separation(folders=hooks.folders, reason=reason)


def named_folders(command: Sequence[str], working_folder: str) -> list[str]:
    """Return the folders outside the working folder that the arguments of the command name; they may not exist yet."""
    folders = []
    for word in command[1:]:
        text = os.path.expanduser(word.rpartition("=")[2])
        if not text.startswith((os.sep, "../")):
            continue
        path = os.path.realpath(os.path.join(working_folder, text))
        if not os.path.isfile(path):  # as are a script, a configuration and a data file
            folders.append(path)
    return folders


def _nearest_folder(path: str) -> str:
    """Return the folder, or the nearest one above it that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _is_of_the_machine(folder: str) -> bool:
    """Whether a folder belongs to the system, or holds what all processes of the machine share."""
    is_in_system = any(folder == path or folder.startswith(path + os.sep) for path in _SYSTEM)
    return is_in_system or folder in (*_SHARED_BY_ALL, os.path.realpath(tempfile.gettempdir()))


def why_unfit(folder: str) -> str | None:
    """Return why a folder should not be overlaid, or None if it can be tried."""
    if _is_of_the_machine(folder):
        return f"{folder} belongs to the machine: all its processes share it"
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written to"
    status = os.stat(folder)
    if os.geteuid() != 0 and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        return f"{folder} belongs to another user or group, whose files cannot be changed in a user namespace"
    mounted = next((mount for mount in _mounts() if mount.startswith(folder + os.sep)), None)
    if mounted is not None:
        return f"{mounted} is another file system within {folder}"
    return None


def _mounts() -> list[str]:
    """Return the folders at which file systems are mounted."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    # The kernel writes spaces, tabs, newlines and backslashes as octal numbers.
    return [line.split()[4].encode().decode("unicode_escape") for line in lines]


def _outermost(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders without those that are within another one."""
    return tuple(folder for folder in dict.fromkeys(folders) if not _is_within(folder, folders))


def _refusal(separation: Separation, out: Path, environment: Mapping[str, str]) -> str:
    """Try the overlay; return why the kernel refuses it, or an empty text if it works."""
    trial = Path(tempfile.mkdtemp(prefix=TRIED, dir=out))
    try:
        words = enter_words(separation, trial, out, environment)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_TIMEOUT_S, check=False)
        if done.returncode == 0:
            return ""
        return read_refusal(trial) or f"an overlay could not be tried: exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"an overlay could not be tried: {error}"
    finally:
        remove_layers(trial)
        shutil.rmtree(trial, ignore_errors=True)


def enter_words(separation: Separation, trial: Path, out: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the arguments that precede a trial's command, and create the folders for what it writes."""
    folders = []
    for number, path in enumerate(separation.folders):
        upper, work = (trial / LAYERS / str(number) / name for name in ("upper", "work"))
        upper.mkdir(parents=True, mode=0o755)
        work.mkdir()
        with suppress(OSError):
            shutil.copymode(path, upper)
        folders.append({"path": path, "upper": str(upper), "work": str(work)})
    spec = {
        "folders": folders,
        "through": _shared_folders(separation, out, environment),
        "needs_user": separation.needs_user,
        "variable": Variable.APART,
        "refusal": str(trial / REFUSAL),
    }
    return [sys.executable, "-I", "-S", str(_ENTER), json.dumps(spec), "--"]


def _shared_folders(separation: Separation, out: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the folders within the overlaid ones that stay shared: that of the tuning, caches, the temporary folder.

    A cache that does not exist yet is created, so that not every trial fills it again.
    """
    home = environment.get("HOME") or os.path.expanduser("~")
    shared = [str(out), tempfile.gettempdir(), *(os.path.join(home, name) for name in HOME_CACHES)]
    caches = [os.path.abspath(value) for name in CACHE_VARIABLES if (value := environment.get(name))]
    within = [path for path in map(os.path.realpath, [*shared, *caches]) if _is_within(path, separation.folders)]
    for path in within:
        if path in map(os.path.realpath, caches):
            with suppress(OSError):
                os.makedirs(path, exist_ok=True)
    return list(_outermost([path for path in within if os.path.isdir(path)]))


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def read_refusal(trial: Path) -> str | None:
    """Return why the kernel refused the overlay of a trial; None if it did not."""
    with suppress(OSError):
        return read_text(trial / REFUSAL, errors="replace")
    return None


def layers(separation: Separation, trial: Path) -> dict[str, Path]:
    """Return where the trial's files are, by overlaid folder; folders that were not written to are included."""
    return {path: trial / LAYERS / str(number) / "upper" for number, path in enumerate(separation.folders)}


def remove_layers(trial: Path) -> None:
    """Remove the trial's files. The kernel's own folder among them may be entered only after a change of its mode."""
    for root, folders, _ in os.walk(trial / LAYERS):
        for name in folders:
            path = os.path.join(root, name)
            with suppress(OSError):
                if stat.S_IMODE(os.lstat(path).st_mode) & stat.S_IRWXU != stat.S_IRWXU and not os.path.islink(path):
                    os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(trial / LAYERS, ignore_errors=True)
