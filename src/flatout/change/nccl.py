"""NCCL settings, by transport and message size. Fast but wrong settings are in `forbidden`, never here.

Each setting is for one kind of transport, and for messages that are large enough: a setting that moves 256 MB over
sockets four times as fast slows 16 KB down. NCCL reads its settings when it creates a communicator, so each needs a
fresh process.
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "nccl"
MIB = 1 << 20
# Threads x sockets per thread + channels; the first two were measured best on H200 over TCP.
SOCKETS = ((2, 2, 8), (1, 1, 16), (4, 1, 8), (4, 4, 8), (2, 8, 8))
_DOCS = "NCCL documentation, environment variables"
_NCCL = Need(fact="backend", relation="is", value="nccl")
_SEVERAL = Need(fact="num_ranks", relation="at least", value=2)
_LARGE = Need(fact="collective_bytes", relation="at least", value=MIB)
_COMMUNICATION = {"exposed-communication": 1.0, "exposed-all-gather": 1.0, "redundant-gradient-sync": 1.0}


def _over(transport: str) -> Need:
    return Need(fact="transport", relation="is", value=transport)


SOCKET = Knob(
    name="nccl-sockets",
    family=FAMILY,
    summary="use more threads, sockets and channels for large messages over TCP",
    safety="exact",
    answers=_COMMUNICATION,
    needs=(_NCCL, _SEVERAL, _over("socket"), _LARGE),
    valid=ValidRange(choices=tuple(f"{t}x{s}+{c}" for t, s, c in SOCKETS)),
    excludes=("nccl-channels",),
    combines_with=("ddp-bucket", "nccl-buffer"),
    gates=("loss", "data"),
    doc=(
        "The value is threads x sockets per thread + channels. One TCP stream cannot fill a fast network: an all-reduce"
        " of 256 MB on four H200 over TCP reached 3.0 GB/s by default and 13.5 with 2x2+8; one of 28 MB on two reached"
        " 2.9, 9.2, and 14.3 with 1x1+16. By default, one thread of a rank serves all its sockets; with these values,"
        " each channel has that number of threads per direction. If the threads far outnumber the cores, as with 4x4+8"
        " on few cores, it becomes slower again. For messages of 16 KB the default is the fastest, so Flatout proposes"
        " the change for 1 MiB and more."
    ),
    source=f"{_DOCS}; measured on 4 and 2 H200 over TCP",
)
CHANNELS = Knob(
    name="nccl-channels",
    family=FAMILY,
    summary="set a minimum number of channels",
    safety="exact",
    answers=_COMMUNICATION,
    needs=(_NCCL, _SEVERAL, _LARGE, Need(fact="transport", relation="is not", value="socket")),
    valid=ValidRange(least=1, most=32),
    excludes=("nccl-sockets", "nccl-max-ctas", "nccl-ctas"),
    gates=("loss", "data", "memory"),
    doc=(
        "More of a collective in parallel, at the price of GPU cores and buffers that concurrent compute would use."
        " Over sockets, more channels alone made an all-reduce of 256 MB slower (2.9 to 2.15 GB/s on two H200), so"
        " threads, sockets and channels are one knob there, nccl-sockets."
    ),
    source=_DOCS,
)
MAX_CTAS = Knob(
    name="nccl-max-ctas",
    family=FAMILY,
    summary="limit the thread blocks of a collective, to leave the rest for compute",
    safety="exact",
    reduces={"compute": 0.15},
    needs=(_NCCL, _SEVERAL, _over("nvlink"), _LARGE, Need(fact="nccl", relation="at least", value="2.17")),
    valid=ValidRange(least=1, most=32),
    excludes=("nccl-channels",),
    gates=("loss", "data"),
    doc=(
        "Hidden communication still takes GPU cores from concurrent compute: the same work takes 9-32 % longer on a"
        " rank whose communication kernels wait. Fewer blocks free some of these cores."
    ),
    source=f"{_DOCS}, NCCL_MAX_CTAS",
)
CTAS = Knob(
    name="nccl-ctas",
    family=FAMILY,
    summary="give each communicator this number of thread blocks",
    safety="exact",
    answers=dict.fromkeys(_COMMUNICATION, 0.3),
    needs=(_NCCL, _SEVERAL, _over("nvlink"), _LARGE, Need(fact="nccl", relation="at least", value="2.17")),
    valid=ValidRange(choices=("16", "32")),
    excludes=("nccl-channels", "nccl-max-ctas"),
    gates=("loss", "data", "memory"),
    doc=(
        "Sets min_ctas and max_ctas of ProcessGroupNCCL.Options to the same value, because NCCL takes them together"
        " only, and reads them back from each process group; a group for which the script passes options keeps those."
        " More blocks move large messages faster, and leave fewer GPU cores to concurrent compute."
    ),
    source="NCCL documentation, ncclConfig_t; torch documentation, ProcessGroupNCCL.Options",
)
BUFFER = Knob(
    name="nccl-buffer",
    family=FAMILY,
    summary="change the buffer size of each channel (MiB)",
    safety="exact",
    answers=dict.fromkeys(_COMMUNICATION, 0.3),
    needs=(_NCCL, _SEVERAL, Need(fact="collective_bytes", relation="at least", value=8 * MIB)),
    valid=ValidRange(choices=("1", "2", "8", "16")),
    gates=("loss", "data", "memory"),
    doc=(
        "The default is 4 MiB; 8 suits fast networks, and 1 suits consumer boards over PCIe (NVIDIA/nccl#1530). Memory"
        " use grows with channels and peers. It must be a power of two."
    ),
    source=_DOCS,
)
QUEUE_PAIRS = Knob(
    name="nccl-queue-pairs",
    family=FAMILY,
    summary="use more queue pairs for each InfiniBand or RoCE connection",
    safety="exact",
    answers=dict.fromkeys(_COMMUNICATION, 0.5),
    needs=(_NCCL, _SEVERAL, _over("infiniband"), _LARGE, Need(fact="num_hosts", relation="at least", value=2)),
    valid=ValidRange(choices=("2", "4", "8")),
    gates=("loss", "data"),
    doc="Lets one connection use several paths: it helped on bonded RoCE ports. Small messages take longer.",
    source=f"{_DOCS}; NVIDIA/nccl#1015",
)
NO_NVLS = Knob(
    name="nccl-no-nvls",
    family=FAMILY,
    summary="switch off NVLink SHARP",
    safety="exact",
    answers=dict.fromkeys(_COMMUNICATION, 0.15),
    saves_memory=0.05,
    needs=(_NCCL, _SEVERAL, _over("nvlink"), Need(fact="gpu_arch", relation="at least", value=9.0), _LARGE),
    gates=("loss", "data"),
    doc=(
        "NVLS is faster for medium sizes, rings are faster for some large ones (+5-11 % at 64-128 MB on 8 B300, one"
        " measurement), and its buffers take device memory."
    ),
    source="NCCL documentation, NCCL_NVLS_ENABLE; research notes on communication",
)
KNOBS = (SOCKET, CHANNELS, MAX_CTAS, CTAS, BUFFER, QUEUE_PAIRS, NO_NVLS)


def changes(facts: JobFacts) -> Iterator[Change]:
    for threads, sockets, channels in SOCKETS:
        if _has_cores(facts, threads):
            environment = {
                "NCCL_SOCKET_NTHREADS": str(threads),
                "NCCL_NSOCKS_PERTHREAD": str(sockets),
                "NCCL_MIN_NCHANNELS": str(channels),
            }
            yield setting(SOCKET, f"{threads}x{sockets}+{channels}", environment=environment)
    for channels in (8, 16):
        yield setting(CHANNELS, channels, environment={"NCCL_MIN_NCHANNELS": str(channels)})
    for blocks in (16, 8):
        yield setting(MAX_CTAS, blocks, environment={"NCCL_MAX_CTAS": str(blocks)})
    for blocks in (16, 32):
        yield setting(CTAS, blocks, patch="nccl_options", min_ctas=blocks, max_ctas=blocks)
    for mebibytes in (1, 2) if facts.transport == "pcie" else (8, 16):
        yield setting(BUFFER, mebibytes, environment={"NCCL_BUFFSIZE": str(mebibytes * MIB)})
    for pairs in (2, 4, 8):
        yield setting(QUEUE_PAIRS, pairs, environment={"NCCL_IB_QPS_PER_CONNECTION": str(pairs)})
    yield setting(NO_NVLS, environment={"NCCL_NVLS_ENABLE": "0"})


def _has_cores(facts: JobFacts, threads: int) -> bool:
    """Whether each rank has a core for each socket thread; assumed if the cores are unknown."""
    return facts.cores_per_rank is None or threads <= max(facts.cores_per_rank, 2)
