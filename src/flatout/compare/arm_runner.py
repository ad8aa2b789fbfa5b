"""Open what runs the trials of one command: its folder, its journal, its environment.

In: an `ArmRequest` and a folder. Out: a `Runner`. Processes that an earlier session left in the folder are ended first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from flatout import __version__
from flatout.compare.arms import ArmRequest, arm_environment
from flatout.inside.protocol import Variable
from flatout.launch import LocalLauncher, StandardInput, end_marked
from flatout.secrets import masked_command, masked_environment
from flatout.trial.journal import Heading, Journal
from flatout.trial.separation import choose_separation
from flatout.tune.runner import Runner, Say
from flatout.tune.trial_files import settle_interrupted

JOURNAL = "journal.jsonl"


def arm_runner(
    request: ArmRequest,
    out: Path,
    *,
    budget_s: float,
    standard_input: StandardInput,
    mark: str,
    say: Say,
    warmup: int | None = None,
    commit: str | None = None,
    tree: Path | None = None,
    moved: Mapping[str, str] | None = None,
) -> Runner:
    """Return the runner of one arm, in our working folder or, of a commit, in its worktree `tree`."""
    out.mkdir(parents=True, exist_ok=True)
    environment = arm_environment(request, os.environ, moved or {})
    options = {
        "warmup": repr(warmup),
        "commit": repr(commit),
        "python": repr(str(request.python) if request.python is not None else None),
        "variables": repr(sorted(masked_environment(request.variables).items())),
    }
    shown = masked_command(request.command)
    journal = Journal(out / JOURNAL, Heading(tool_version=__version__, command=tuple(shown), options=options))
    if journal.num_before:
        say(f"resuming with {journal.num_before} trials of {request.name}")
    runs = f"{out / 'runs'}{os.sep}"
    end_marked(lambda environment: environment.get(Variable.RECORDING, "").startswith(runs))
    settle_interrupted(out)
    working_folder = str(tree) if tree is not None else None
    return Runner(
        request.command,
        out,
        journal,
        shown_command=shown,
        budget_s=budget_s,
        say=lambda line: say(f"{request.name}: {line}"),
        environment=environment,
        warmup=warmup,
        launcher=LocalLauncher(standard_input, tree),
        separation=choose_separation(request.command, out, environment, working_folder),
        reports_trials=False,
        mark=mark,
    )
