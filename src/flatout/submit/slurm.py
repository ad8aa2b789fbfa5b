"""Submit a request as a Slurm batch job: the script that `emit` writes, with options of `sbatch`.

The script writes its exit code next to its output, so both are known without Slurm's accounting. sbatch reads it
from standard input; a copy, its secrets masked, is in the submission's folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

from flatout.emit import slurm as emitted
from flatout.emit.masked import masked_note, masked_tuning
from flatout.emit.rendezvous import own_rendezvous
from flatout.errors import InputError, UsageError
from flatout.launch.slurm import job_number, run_sbatch
from flatout.records.staging import slurm_feature
from flatout.records.tuning import Emitted, Tuning
from flatout.report.command import command_line
from flatout.submit.job import JobRequest, Prepared
from flatout.submit.unsupported import pod_option_notes

_CHOOSES_NODES = ("--nodelist", "-w", "--nodefile", "-F")
_CHOOSES_CPUS = ("--cpus-per", "-c", "--exclusive", "--mincpus")
_SINFO_S = 30.0
_SAVE_EXIT_CODE = """\
rm -f "$exit_code_file"
tell_exit_code() { echo "$?" > "$exit_code_file" || true; }
trap tell_exit_code EXIT
"""
# Since 22.05, Slurm does not pass a job's --cpus-per-task on to its steps.
_CPUS = '[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"\n'


def prepare(request: JobRequest) -> Prepared:
    """Prepare the script and the command. Raises UsageError for a rendezvous on a node that Slurm might not use."""
    output = request.folder / "output.log"
    code_file = request.folder / "exit_code"
    setup = f"exit_code_file={shlex.quote(str(code_file))}\n{_SAVE_EXIT_CODE}{_CPUS}"
    keeps_rendezvous = _keeps_rendezvous(request)
    job = _script(request, request.tuning, setup, keeps_rendezvous=keeps_rendezvous)
    copy = _script(request, masked_tuning(request.tuning), setup, keeps_rendezvous=keeps_rendezvous)
    script_file = request.folder / "job.sbatch"
    escaped_output = str(output).replace("%", "%%")
    command = ["sbatch", "--parsable", *_options(request), f"--output={escaped_output}"]

    def submit() -> str:
        if shutil.which("sbatch") is None:
            raise InputError(
                "`--to slurm` needs sbatch, which was not found",
                hint="run it where jobs are submitted, e.g. on a login node",
            )
        return job_number(run_sbatch(command, os.environ, job.text))

    return Prepared(
        scheduler="slurm",
        shown=command_line([*command, str(script_file)]),
        files={script_file: copy.text},
        output=output,
        exit_code_file=code_file,
        notes=(*job.notes, *masked_note(request.tuning), *_notes(request)),
        submit=submit,
        next_command=lambda number: shlex.join(["squeue", "--jobs", number]) if number else "flatout submit -- COMMAND",
    )


def _script(request: JobRequest, tuning: Tuning, setup: str, *, keeps_rendezvous: bool) -> Emitted:
    """Return the batch script with the job's nodes, GPUs and CPUs."""
    cpus = request.pods.cpus
    return emitted.emit(
        tuning,
        keeps_rendezvous=keeps_rendezvous,
        setup=setup,
        gpus_per_node=request.gpus_per_node,
        cpus_per_node=int(cpus) if cpus is not None else None,
    )


def _keeps_rendezvous(request: JobRequest) -> bool:
    """Whether the user's own rendezvous is kept."""
    own = own_rendezvous(request.tuning)
    if own is None:
        return False
    is_pinned = any(option.startswith(_CHOOSES_NODES) for option in request.options)
    is_endpoint = "rdzv" in own.word.lower()
    if own.is_store or (is_pinned and is_endpoint):
        return True
    raise UsageError(
        f"torchrun's rendezvous is `{own.word}`, but Slurm has not chosen the nodes yet",
        hint="omit it, and the agents meet on the job's first node; or choose the nodes: "
        "--sbatch-options --nodelist=n1,n2 with --rdzv-endpoint",
    )


def _options(request: JobRequest) -> list[str]:
    """Return sbatch's options. The user's own come last and override the rest; all override the script's directives."""
    options = [f"--job-name={request.name}", f"--chdir={request.working_folder}", "--export=ALL"]
    if request.num_nodes is not None:
        options.append(f"--nodes={request.num_nodes}")
    if request.gpus_per_node:
        options.append(f"--gpus-per-node={request.gpus_per_node}")
    if request.time_s is not None:
        options.append(f"--time={_slurm_duration(request.time_s)}")
    if request.deadline_s is not None:
        options.append(f"--deadline=now+{round(request.deadline_s)}")
    if request.partitions:
        options.append(f"--partition={','.join(request.partitions)}")
    if request.account is not None:
        options.append(f"--account={request.account}")
    if request.qos is not None:
        options.append(f"--qos={request.qos}")
    if request.data_set is not None and slurm_feature(request.data_set) not in _without_nodes(request):
        options.append(f"--prefer={slurm_feature(request.data_set)}")
    if request.can_resume:
        options += ["--requeue", "--open-mode=append"]
    else:
        options += ["--no-requeue", "--open-mode=truncate"]
    return [*options, *request.options]


def _without_nodes(request: JobRequest) -> set[str]:
    """Return the feature of the data set if no node has it: Slurm rejects a job that prefers an unknown feature."""
    if request.data_set is None or shutil.which("sinfo") is None:
        return set()
    command = ["sinfo", "--noheader", "--format=%f"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SINFO_S, check=False)
    feature = slurm_feature(request.data_set)
    known = {each.strip() for line in done.stdout.splitlines() for each in line.split(",")}
    return set() if done.returncode != 0 or feature in known else {feature}


def _slurm_duration(value_s: float) -> str:
    """Return a duration as `days-hours:minutes:seconds`. Slurm counts whole minutes and rounds up."""
    minutes, seconds = divmod(round(value_s), 60)
    days, minutes = divmod(minutes, 24 * 60)
    return f"{days}-{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def _notes(request: JobRequest) -> list[str]:
    whose = "for sbatch, pass --sbatch-options: Flatout has"
    notes = pod_option_notes(request, whose, supported=("--cpus",))
    if request.deadline_s is not None and request.time_s is None:
        notes.append("Slurm judges a --deadline by the time limit: without --time, by the partition's")
    for feature in sorted(_without_nodes(request)):
        notes.append(f"no node has the feature {feature} yet, so none is preferred (see `flatout data stage`)")
    chooses_cpus = any(option.startswith(_CHOOSES_CPUS) for option in request.options)
    if request.gpus_per_node and request.pods.cpus is None and not chooses_cpus:
        notes.append(
            "a task gets as many CPUs as the partition's default says, often one: pass --cpus, the CPUs per node"
        )
    return notes
