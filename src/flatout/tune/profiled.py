"""Read the profile of a job from its folder: the recording, its diagnosis in the long run, and the facts of the job.

In: the folder of a run that was traced. Out: a `Profiled`, or FlatoutError with one line that says why the job could
not be traced. The steps before the trace may count as a trial too (see `trial.profile_as_trial`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.change.collectives import with_collectives
from flatout.change.transport import with_transport
from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths
from flatout.errors import FlatoutError, InputError, NotTracedError
from flatout.profile import read_recording
from flatout.profile.read_facts import read_facts
from flatout.records.change import JobFacts
from flatout.records.loading import LoadingProfile
from flatout.records.recording import Recording
from flatout.records.stop_rule import StopRule
from flatout.records.trial import TrialResult
from flatout.storage_pipeline import loading_of
from flatout.trial.result import error_line
from flatout.tune.loader_model import with_loader_model
from flatout.tune.long_run import in_the_long_run


class CountedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How a profile is made that is to count as a trial."""

    rule: StopRule  # when it has measured enough steps before its trace
    is_coarse: bool = False  # it counts too if it is only as good as a coarse trial
    has_other_samples: bool = False  # its loader draws other samples than in the other trials


class Profiled(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    done: Diagnosed
    recording: Recording
    facts: JobFacts
    loaders: LoadingProfile | None = None  # how its batches are made, if the stages were timed
    trial: TrialResult | None = None  # its steps before the trace, if they are as good as those of a trial

    @property
    def is_slowed_by_stages(self) -> bool:
        """Whether timing the stages of batches slows the steps, by up to 1 %: they wait for batches."""
        return self.loaders is not None and bool(self.loaders.is_waiting)


def read_profile(folder: Path, *, has_failed: bool = False) -> Profiled:
    """Diagnose the recording in the folder.

    Raises FlatoutError if the job was not traced: NotTracedError if it did not fail.
    """
    recording, output = recording_in(folder / "recording"), folder / "output.log"
    hint = f"its output is in {output}"
    if has_failed and (recording is None or not recording.ranks):  # the job failed before it trained
        raise FlatoutError(f"the job could not be traced: {error_line(output)}", hint=hint)
    if recording is None or not recording.traced_ranks:
        why = recording.problems[0].problem if recording is not None and recording.problems else error_line(output)
        kind = FlatoutError if has_failed else NotTracedError
        raise kind(f"the job could not be traced: {why}", hint=hint)
    try:
        done = diagnose_paths([folder / "recording"], with_tracks=True)
    except InputError as error:
        why = "; ".join(dict.fromkeys(note.problem for note in recording.problems)) or str(error)
        raise FlatoutError(f"the job could not be traced: {why}", hint=hint) from error
    recorded_facts = read_facts(folder / "recording", recording)
    loaders = loading_of(recording)
    recorded_facts = with_loader_model(recorded_facts, loaders)
    facts = with_transport(with_collectives(recorded_facts, done.job), recording.hosts)
    diagnosis = in_the_long_run(done.diagnosis, facts.steps_per_epoch)
    return Profiled(
        done=msgspec.structs.replace(done, diagnosis=diagnosis), recording=recording, facts=facts, loaders=loaders
    )


def recording_in(folder: Path) -> Recording | None:
    """Return the recording in a folder; None if there is none that can be read."""
    try:
        return read_recording(folder)
    except InputError:
        return None
