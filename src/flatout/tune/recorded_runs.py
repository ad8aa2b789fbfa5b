"""Start the job of a tuning with some changes, and record it: each run in fresh processes and its own folder.

In: the command, the changes, what the recorder is to do, and a time limit. Out: the recording (None if it cannot be
read), how the job ended, and the file with its output. What the numbers mean is for the caller to say.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.inside.protocol import Variable
from flatout.launch import ExitStatus, Launcher
from flatout.profile import RecordOptions, record
from flatout.records.change import ChangeSet
from flatout.records.recording import Recording
from flatout.secrets import Masker, mask_file
from flatout.trial.bytecode import FOLDER, Bytecode
from flatout.trial.command import trial_command
from flatout.tune.profiled import recording_in
from flatout.tune.trial_files import TrialFiles

MAX_ENDED_BY_CLUSTER = 3  # runs in a row
# Of all runs, so that losses of a script without a seed can be compared; unlikely to be a script's own.
_SEED = "86753090"

Recorded = tuple[Recording | None, ExitStatus, Path]


class RecordedRuns:
    """Starts the runs of one tuning, one after the other. `files` keeps apart what they write."""

    def __init__(
        self,
        command: Sequence[str],
        out: Path,
        files: TrialFiles,
        *,
        shown_command: Sequence[str],
        launcher: Launcher,
        say: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        self._command = tuple(command)
        self._out = out
        self._files = files
        self._shown_command = tuple(shown_command)
        self._launcher = launcher
        self._say = say
        self._environment = environment
        self._bytecode = Bytecode(out / "runs" / FOLDER, environment)

    def folder(self, name: str) -> Path:
        """Create the folder of the next run, without what an interrupted tuning has left there."""
        folder = self._out / "runs" / name
        if folder.exists():
            self._files.settle(folder)
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def record(
        self, changes: ChangeSet, folder: Path, options: RecordOptions, variables: Mapping[str, str], limit_s: float
    ) -> Recorded:
        """Run the job; run it again if the cluster ended the run, e.g. by preemption. Raises FlatoutError."""
        num_ended_by_cluster = 0
        while True:
            recorded = self._record_once(changes, folder, options, variables, limit_s)
            ended = recorded[1]
            problem = self._files.problem(folder)
            if problem is not None:
                self._files.settle(folder)
                self._files.use_hooks(problem)
                self._say(f"repeating {folder.name} without an overlay: {problem}")
                self.folder(folder.name)
                continue
            if ended.cause != "void":
                return recorded
            num_ended_by_cluster += 1
            if num_ended_by_cluster == MAX_ENDED_BY_CLUSTER:
                break
            self._say(f"repeating {folder.name}: job {ended.job}: {ended.reason}")
            self._files.settle(folder)
            self.folder(folder.name)
        raise FlatoutError(
            f"the cluster ended {folder.name} {MAX_ENDED_BY_CLUSTER} times in a row, the last time: {ended.reason}",
            hint="run the same command with its --out to resume the tuning",
        )

    def _record_once(
        self, changes: ChangeSet, folder: Path, options: RecordOptions, variables: Mapping[str, str], limit_s: float
    ) -> Recorded:
        output = folder / "output.log"
        (folder / "files").mkdir()
        command = trial_command(self._command, changes, folder / "files")
        words, apart = self._files.prepare(folder, command.words)
        all_variables = {
            **self._bytecode.variables,
            **command.variables,
            **apart,
            Variable.FACTS: "1",
            Variable.SEED: _SEED,
            **variables,
        }
        try:
            recorded = record(
                words,
                folder / "recording",
                msgspec.structs.replace(options, force=True, variables=all_variables),
                shown_command=self._shown_command,
                sampler=[sys.executable, "-m", "flatout.probe.sampler"],
                environment=self._environment,
                run_command=partial(self._launcher.run, output=output, limit_s=limit_s),
            )
        finally:
            mask_file(output, Masker(self._environment, self._command))
        recording = recording_in(folder / "recording")
        if recording is not None:
            self._keep_bytecode(recording, recorded.ended.start_unix_s)
        return recording, recorded.ended, output

    def _keep_bytecode(self, recording: Recording, start_unix_s: float) -> None:
        """Let later runs keep the job's compiled bytecode if it does not keep it itself."""
        overlaid = self._files.separation.folders if self._files.is_overlay else ()
        if self._bytecode.learn(recording.ranks, start_unix_s, overlaid):
            self._say("the job does not keep its compiled bytecode: later trials keep it, and start faster")
