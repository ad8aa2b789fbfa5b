"""A request as a Slurm batch job: the script that `emit` writes, submitted with the options as `sbatch` has them.

The script writes its exit code beside its output, so that both are known without Slurm's accounting. It stands on
sbatch's standard input: a copy lies in the folder.
"""

from __future__ import annotations

import os
import shlex
import shutil

from flatout.emit import slurm as emitted
from flatout.emit.rendezvous import own_meeting
from flatout.errors import InputError, UsageError
from flatout.launch.slurm import job_number, run_sbatch
from flatout.submit.job import JobRequest, Prepared

_CHOOSES_NODES = ("--nodelist", "-w", "--nodefile", "-F")
_SET = "set -euo pipefail\n"
_TELL = """\
rm -f "$exit_code_file"
tell_exit_code() { echo "$?" > "$exit_code_file" || true; }
trap tell_exit_code EXIT
"""
# Slurm since 22.05 does not hand a job's --cpus-per-task on to its steps.
_CPUS = '[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"\n'


def prepare(request: JobRequest) -> Prepared:
    made = emitted.emit(request.tuning, keeps_meeting=_keeps_meeting(request))
    code_file = request.folder / "exit_code"
    script = made.text.replace(_SET, f"{_SET}exit_code_file={shlex.quote(str(code_file))}\n{_TELL}{_CPUS}", 1)
    output = request.folder / "output.log"
    words = ["sbatch", "--parsable", *_options(request), f"--output={str(output).replace('%', '%%')}"]
    script_file = request.folder / "job.sbatch"

    def submit() -> str:
        if shutil.which("sbatch") is None:
            raise InputError(
                "`--to slurm` needs sbatch, which was not found",
                hint="run it where jobs are submitted, as on a login node",
            )
        return job_number(run_sbatch(words, os.environ, script))

    return Prepared(
        scheduler="slurm",
        shown=shlex.join([*words, str(script_file)]),
        files={script_file: script},
        output=output,
        exit_code_file=code_file,
        notes=(*made.notes, *_notes(request)),
        submit=submit,
        next_command=lambda job: shlex.join(["squeue", "--jobs", job]) if job else "flatout submit -- COMMAND",
    )


def _keeps_meeting(request: JobRequest) -> bool:
    """Whether the user's own meeting place stays. Raises UsageError where it names a node that Slurm may not give."""
    own = own_meeting(request.tuning)
    if own is None:
        return False
    is_pinned = any(option.startswith(_CHOOSES_NODES) for option in request.options)
    if own.is_store or (is_pinned and "rdzv" in own.word.lower()):
        return True
    raise UsageError(
        f"torchrun's agents are to meet where `{own.word}` says, before Slurm has chosen the nodes",
        hint="leave it out: they meet on the job's first node; or choose the nodes: --sbatch-options --nodelist=n1,n2 "
        "with --rdzv-endpoint",
    )


def _options(request: JobRequest) -> list[str]:
    """Before the user's own options, which win; the script's directives are weaker than both."""
    found = [f"--job-name={request.name}", f"--chdir={request.working_folder}", "--export=ALL"]
    if request.num_nodes is not None:
        found.append(f"--nodes={request.num_nodes}")
    if request.gpus_per_node:
        found.append(f"--gpus-per-node={request.gpus_per_node}")
    if request.time_s is not None:
        found.append(f"--time={_duration(request.time_s)}")
    if request.deadline_s is not None:
        found.append(f"--deadline=now+{round(request.deadline_s)}")
    if request.partitions:
        found.append(f"--partition={','.join(request.partitions)}")
    if request.account is not None:
        found.append(f"--account={request.account}")
    if request.qos is not None:
        found.append(f"--qos={request.qos}")
    found += ["--requeue", "--open-mode=append"] if request.can_resume else ["--no-requeue", "--open-mode=truncate"]
    return [*found, *request.options]


def _duration(value_s: float) -> str:
    """Slurm counts whole minutes, and rounds up."""
    minutes, seconds = divmod(round(value_s), 60)
    days, minutes = divmod(minutes, 24 * 60)
    return f"{days}-{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def _notes(request: JobRequest) -> list[str]:
    if request.deadline_s is not None and request.time_s is None:
        return ["a --deadline is judged by the time limit: without --time, by the partition's"]
    return []
