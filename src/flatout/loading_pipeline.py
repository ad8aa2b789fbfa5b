"""Profile how a job makes its batches: record the command, read the reports of its processes, find the causes.

Composes `profile` and `storage_pipeline` for `flatout data`. Nothing is printed but problems with the recording.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.inside.protocol import File, Variable
from flatout.launch import ExitStatus
from flatout.profile import RecordOptions, is_recording, read_recording, record
from flatout.profile.folder import default_path
from flatout.records.loading import LoadingProfile
from flatout.run.several_nodes import key_of_nodes
from flatout.secrets import masked_command
from flatout.storage_pipeline import loading_of


class ProfiledLoading(msgspec.Struct, frozen=True, kw_only=True):
    profile: LoadingProfile | None  # None on a node that is not the first
    ended: ExitStatus


def profile_loading(command: Sequence[str], *, out: Path | None, force: bool) -> ProfiledLoading:
    """Run the command and return the profile of its loaders. Raise OutputError or InputError before it starts."""
    recorded = record(
        command,
        out or default_path(),
        RecordOptions(
            is_light=True,
            force=force,
            job_key=key_of_nodes(command, os.environ),
            variables={Variable.LOADER_STAGES: "1"},
        ),
        shown_command=masked_command(command),
        sampler=[sys.executable, "-m", "flatout.probe.sampler"],
    )
    profile = loading_of(read_recording(recorded.path)) if recorded.is_first else None
    return ProfiledLoading(profile=profile, ended=recorded.ended)


def read_loading(folder: Path) -> LoadingProfile:
    """Return the profile of a folder that `flatout data profile` recorded. Raise InputError if it is none."""
    if not is_recording(folder):
        raise InputError(f"`{folder}` is not a recording", hint="record one: flatout data profile -- COMMAND")
    profile = loading_of(read_recording(folder))
    has_reports = bool(profile.ranks or profile.problems or any(folder.rglob(File.STAGES.glob)))
    if not has_reports:
        raise InputError(
            f"`{folder}` has no stages of batches", hint="record the job with: flatout data profile -- COMMAND"
        )
    return profile
