"""What `flatout tune nccl` has measured for a job: settings of NCCL, and a table for the tuner plugin."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.inside.protocol import Variable
from flatout.records.change import Change, JobFacts, Knob, Need

FAMILY = "nccl_measured"
# The settings in `nccl_tuner/spaces.toml`, and what the plugin and its table need.
VARIABLES = (
    "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_MIN_NCHANNELS",
    "NCCL_SOCKET_INLINE",
    "NCCL_BUFFSIZE",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_SHM_USE_CUDA_MEMCPY",
    "NCCL_TUNER_PLUGIN",
    Variable.NCCL_TABLE,
)

MEASURED = Knob(
    name="nccl-measured",
    family=FAMILY,
    summary="apply the settings and the table by message size that were measured for this job's collectives",
    safety="exact",
    answers={"exposed-communication": 1.0, "exposed-all-gather": 1.0, "redundant-gradient-sync": 1.0},
    needs=(Need(fact="num_ranks", relation="at least", value=2),),
    variables=VARIABLES,
    excludes=("nccl-sockets", "nccl-channels", "nccl-max-ctas", "nccl-ctas", "nccl-buffer", "nccl-queue-pairs"),
    gates=("loss", "data"),
    doc=(
        "Where communication is exposed, a tuning measures candidates for the job's own groups and sizes, checks their"
        " results, and keeps what was faster than the default: settings for all sizes, and a table that chooses the"
        " algorithm, the protocol and the number of channels by size. The table is applied by Flatout's tuner plugin,"
        " which changes nothing where the table has no row. All ranks must have the same table, which they compare"
        " before their first collective."
    ),
    source="measured on the job's own machine; the interface of NCCL's tuner plugins, versions 4 to 6",
)
KNOBS = (MEASURED,)


def changes(facts: JobFacts) -> Iterator[Change]:
    if facts.measured_collectives:
        yield setting(MEASURED, environment=facts.measured_collectives)
