"""Processes on cores: where each rank may run, and with how many threads."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "process"
_NODES = Need(fact="num_numa_nodes", relation="at least", value=2)

BIND = Knob(
    name="bind-cores",
    family=FAMILY,
    summary="bind each rank to its own cores",
    safety="exact",
    answers={"host-bound": 0.5, "straggler": 0.5, "host-sync": 0.3, "memory-copy": 0.3, "data-loading": 0.3},
    needs=(Need(fact="cores_allowed", relation="at least", value=2),),
    valid=ValidRange(choices=("numa", "exclusive")),
    excludes=("torchrun-numa-binding", "srun-binding"),
    doc=(
        "`numa`: the cores of the NUMA node that the rank's GPU is attached to; `exclusive`: an equal share of the"
        " allowed cores. Loader workers inherit the binding, so a share that is too small starves them."
    ),
    source="PyTorch documentation, NUMA binding: 1-10 % in practice",
)
TORCHRUN_NUMA = Knob(
    name="torchrun-numa-binding",
    family=FAMILY,
    summary="let torchrun bind each rank to the NUMA node of its GPU",
    safety="exact",
    answers={"host-bound": 0.5, "straggler": 0.5, "host-sync": 0.3, "memory-copy": 0.3},
    needs=(
        Need(fact="launcher", relation="is", value="torchrun"),
        Need(fact="device", relation="is", value="cuda"),
        Need(fact="torch", relation="at least", value="2.9"),
        _NODES,
    ),
    valid=ValidRange(choices=("node", "socket", "exclusive", "core-complex")),
    excludes=("bind-cores", "srun-binding"),
    doc="The same as `bind-cores=numa` without a patch, by torchrun's own `--numa-binding`.",
    source="PyTorch documentation, NUMA binding",
)
SRUN_BINDING = Knob(
    name="srun-binding",
    family=FAMILY,
    summary="let Slurm bind each task to its cores",
    safety="exact",
    answers={"host-bound": 0.5, "straggler": 0.5, "host-sync": 0.3},
    needs=(Need(fact="launcher", relation="is", value="srun"),),
    valid=ValidRange(choices=("cores",)),
    excludes=("bind-cores", "torchrun-numa-binding"),
    doc="`srun --cpu-bind=cores`; with too few `--cpus-per-task` it starves loader workers.",
    source="Slurm documentation, srun",
)
THREADS = Knob(
    name="threads",
    family=FAMILY,
    summary="run as many compute threads per rank as it has cores",
    safety="exact",
    answers={
        "host-bound": 0.3,
        "data-loading": 0.5,
        "thread-oversubscription": 1.0,
        "idle-cores": 1.0,
        "preprocessing": 0.5,
    },
    needs=(Need(fact="cores_allowed", relation="at least", value=1),),
    valid=ValidRange(least=1, most=256),
    doc=(
        "torchrun sets OMP_NUM_THREADS=1 if it starts several ranks, which leaves cores idle; plain python uses all"
        " cores of the machine for each rank, so ranks compete for them. Sums over more threads are added up in"
        " a different order."
    ),
    source="torch.distributed.run documentation",
)
THREADS_CPU = Knob(
    name="threads-cpu",
    family=FAMILY,
    summary="run as many compute threads per rank as it has cores (training on the CPU)",
    safety="exact",
    answers=THREADS.answers,
    reduces={"compute": 0.9},
    needs=(*THREADS.needs, Need(fact="device", relation="is", value="cpu")),
    valid=THREADS.valid,
    excludes=("threads",),
    doc=THREADS.doc,
    source=THREADS.source,
)
KNOBS = (BIND, TORCHRUN_NUMA, SRUN_BINDING, THREADS, THREADS_CPU)


def changes(facts: JobFacts) -> Iterator[Change]:
    has_numa_nodes = facts.num_numa_nodes is not None and facts.num_numa_nodes >= 2
    has_own_cores = facts.cores_per_rank is not None and facts.cores_per_rank >= 1
    if has_numa_nodes:
        yield setting(BIND, "numa", patch="bind_cores", by="numa")
    if has_own_cores and facts.ranks_on_host > 1:
        yield setting(BIND, "exclusive", patch="bind_cores", by="exclusive")
    yield setting(TORCHRUN_NUMA, "node", launch={"torchrun": ("--numa-binding=node",)})
    yield setting(SRUN_BINDING, "cores", launch={"srun": ("--cpu-bind=cores",)})
    if facts.runs_onnx:  # whose threads are options of its sessions
        return
    knob = THREADS_CPU if facts.device == "cpu" else THREADS
    for count in thread_counts(facts):
        yield setting(knob, count, environment={"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)})


def thread_counts(facts: JobFacts) -> tuple[int, ...]:
    """Return the numbers of threads per rank to try: its share of the allowed cores, and half of that share."""
    if facts.cores_per_rank is None:
        return ()
    share = max(int(facts.cores_per_rank), 1)
    counts = dict.fromkeys((share, share // 2))
    return tuple(count for count in counts if count >= 1 and count != facts.threads_per_rank)
