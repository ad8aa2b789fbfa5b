"""Keep the files of each trial of a tuning apart, and refuse a trial that reads what an earlier one has written.

In: each trial's folder, before and after it runs. Out: the arguments and variables that its command needs, and, in
`outputs`, what the trials wrote. The files that trials left in spite of all are remembered in `runs/written.json`, also
for a resumed tuning.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.errors import InvalidTrialError
from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import Variable
from flatout.records.tuning import Separation
from flatout.trial.changes_on_disk import changed_files, times_of_change
from flatout.trial.outputs import EarlierRead, Outputs, overlaid_outputs, ran_outside, reads_of_earlier, settle_outputs
from flatout.trial.separation import LAYERS, REFUSAL, enter_words, layers, read_refusal, remove_layers

WRITTEN = "written.json"
_EARLIER = "earlier.json"
_SAVED = "saved"
_LAST_MOMENT_NS = 20 * 10**9  # a killed process may write a moment longer than its recorder


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    files: dict[str, tuple[int, str]] = {}  # time of the last change, and the trial, by path


class TrialFiles:
    """The files that the trials of one tuning write."""

    def __init__(self, out: Path, separation: Separation, environment: Mapping[str, str]) -> None:
        self.separation = separation
        self.outputs = Outputs()  # of all trials since this process began
        self.works = False  # whether a trial has completed with this separation
        self._out = out
        self._environment = environment
        self._written = self._read_written()
        self._since_ns = time.time_ns()
        self._before: dict[str, int] | None = None

    @property
    def is_overlay(self) -> bool:
        return self.separation.method == "overlay"

    def prepare(self, folder: Path, command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the arguments that start the command of the trial in `folder`, and the variables for it."""
        earlier = {"since_ns": self._since_ns, "folders": self.separation.folders, "files": self._written}
        (folder / _EARLIER).write_text(json.dumps(earlier), encoding="utf-8")
        variables = {Variable.DIVERT: str(folder / _SAVED), Variable.EARLIER: str(folder / _EARLIER)}
        if not self.is_overlay:
            self._before = self._times()
            return [*command], variables
        if shutil.which(command[0], path=self._environment.get("PATH")) is None:
            return [*command], variables  # the launcher says why it cannot be started
        return [*enter_words(self.separation, folder, self._out, self._environment), *command], variables

    def problem(self, folder: Path) -> str | None:
        """Return why the trial's overlay did not hold, or None if it did or there was none."""
        if not self.is_overlay:
            return None
        refusal = read_refusal(folder)
        if refusal is not None:
            return refusal
        return "processes of the job are outside the overlay" if ran_outside(folder / "recording") else None

    def use_hooks(self, reason: str) -> None:
        self.separation = Separation(folders=self.separation.folders, reason=reason)

    def settle(self, folder: Path) -> tuple[EarlierRead, ...]:
        """Remove the files of a trial that has ended; return those that it should not have read.

        Checkpoints after a few steps are worthless.
        """
        shutil.rmtree(folder / "files", ignore_errors=True)  # first, so that it is not reported as left behind
        reads = reads_of_earlier(folder / "recording")
        outputs = settle_outputs(folder / "recording", folder / _SAVED, self.separation.folders)
        if self.is_overlay:
            outputs |= overlaid_outputs(layers(self.separation, folder))
        else:
            outputs |= Outputs(left=self._changed())
        _remove_kept_files(folder)
        self._remember(outputs.left | outputs.in_place, _label(folder))
        self.outputs |= outputs
        return reads

    def _times(self) -> dict[str, int] | None:
        return times_of_change(self.separation.folders, {str(self._out), str(self._out.resolve())})

    def _changed(self) -> frozenset[str]:
        """Return the files in the user's folders that changed while the trial ran, though no hook reported them."""
        after = self._times() if self._before is not None else None
        if self._before is None or after is None:
            return frozenset()
        return frozenset(changed_files(self._before, after))

    def _remember(self, left: frozenset[str], trial: str) -> None:
        for path in left:
            with suppress(OSError):
                changed_ns = os.stat(path).st_ctime_ns
                if changed_ns >= self._since_ns:
                    self._written[path] = (changed_ns, trial)
        if left:
            with suppress(OSError):
                (self._out / "runs" / WRITTEN).write_bytes(msgspec.json.encode(_Written(files=self._written)))

    def _read_written(self) -> dict[str, tuple[int, str]]:
        try:
            return decode_json(read_bytes(self._out / "runs" / WRITTEN), _Written).files
        except (OSError, msgspec.DecodeError):
            return {}


def _label(folder: Path) -> str:
    """Return the name by which messages mention the trial of a folder such as `trial-003`."""
    kind, _, index = folder.name.partition("-")
    return f"trial {int(index)}" if kind == "trial" else "the profile"


def _remove_kept_files(folder: Path) -> None:
    remove_layers(folder)
    shutil.rmtree(folder / _SAVED, ignore_errors=True)
    for name in (_EARLIER, REFUSAL):
        (folder / name).unlink(missing_ok=True)


def settle_interrupted(out: Path) -> None:
    """Remove the files of trials that did not end, because the tuning was killed.

    Files that changed after the last sign of the trial are kept: they are the user's by now. Nor can a folder that
    comes from somebody else name files of the user's to be removed.
    """
    for folder in (out / "runs").glob("*"):
        if (folder / _SAVED).is_dir() or (folder / LAYERS).is_dir():
            until_ns = _last_sign_ns(folder) + _LAST_MOMENT_NS
            folders = (os.path.realpath(os.getcwd()),)
            settle_outputs(folder / "recording", folder / _SAVED, folders, until_ns=until_ns)
            _remove_kept_files(folder)


def _last_sign_ns(folder: Path) -> int:
    """Return when the trial last wrote to its recording or its output."""
    times = [0]
    for path in [*folder.glob("*"), *folder.glob("recording/*")]:
        with suppress(OSError):
            times.append(path.lstat().st_ctime_ns)
    return max(times)


def invalid_trial(trial: str, reads: tuple[EarlierRead, ...]) -> InvalidTrialError:
    """Return the error that stops a tuning whose trial has read what an earlier trial wrote."""
    first = reads[0]
    more = f" and {len(reads) - 1} more such files" if len(reads) > 1 else ""
    if first.writer is not None:
        which = f"which {first.writer} may have written: it changed during that trial"
    else:
        which = "which has changed since the tuning began"
    return InvalidTrialError(
        f"{trial} is invalid, and the tuning stops: it read {first.path}{more}, {which}",
        hint="let the script write such files below {trial_dir}, e.g. with `--out {trial_dir}` in the command; if the"
        " file is a cache, run the command once before you tune it",
    )


if __name__ == "__main__":  # started by the guard of a killed tuning
    settle_interrupted(Path(sys.argv[1]))
