"""Changes for scripts that only infer: threads, precision and layout on the CPU, compilers, caches of generation."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.process import thread_counts
from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "inference"
_INFERS = Need(fact="only_infers", relation="is", value=True)
_CPU = Need(fact="device", relation="is", value="cpu")
_GPU = Need(fact="device", relation="is", value="cuda")
_ONNX = Need(fact="runs_onnx", relation="is", value=True)
_CORES = Need(fact="cores_allowed", relation="at least", value=1)
_TRANSFORMERS = Need(fact="has_transformers", relation="is", value=True)
_THREAD_FINDINGS = {"thread-oversubscription": 1.0, "idle-cores": 1.0, "preprocessing": 0.5}

TORCH_THREADS = Knob(
    name="torch-threads",
    family=FAMILY,
    summary="another number of compute threads than the script sets by torch.set_num_threads",
    safety="exact",
    answers=_THREAD_FINDINGS,
    reduces={"compute": 0.9},
    needs=(_INFERS, _CPU, _CORES, Need(fact="script_sets_threads", relation="is", value=True)),
    valid=ValidRange(least=1, most=256),
    excludes=("threads", "threads-cpu", "one-thread"),
    doc=(
        "The environment cannot change what the script sets itself. Loader workers keep the single thread that torch"
        " gives them. Sums over more threads are added up in a different order."
    ),
    source="torch.set_num_threads documentation",
)
ONE_THREAD = Knob(
    name="one-thread",
    family=FAMILY,
    summary="run each operator on one thread",
    safety="exact",
    answers={"thread-oversubscription": 1.0, "preprocessing": 0.5},
    needs=(_INFERS, _CPU, Need(fact="threads_per_rank", relation="at least", value=2)),
    excludes=("threads", "threads-cpu", "torch-threads", "wait-passively"),
    doc=(
        "For short operators, and for pools of threads that call the model: starting and joining threads takes longer"
        " than they save. Long operators get slower."
    ),
    source="mozilla/TTS issue 194; torch.set_num_threads documentation",
)
WAIT_PASSIVELY = Knob(
    name="wait-passively",
    family=FAMILY,
    summary="compute threads that wait for the others sleep, and leave their cores to whoever needs them",
    safety="exact",
    answers={"thread-oversubscription": 0.8, "preprocessing": 0.3},
    needs=(_INFERS, _CPU, Need(fact="threads_per_rank", relation="at least", value=2)),
    doc=(
        "By default, OpenMP's threads keep their cores busy for a while after each operator. Where other threads need"
        " these cores, that holds them up; where none does, waking a thread takes some microseconds longer."
    ),
    source="OpenMP specification, OMP_WAIT_POLICY; GNU libgomp manual, GOMP_SPINCOUNT",
)
AUTOCAST_CPU = Knob(
    name="autocast-cpu",
    family=FAMILY,
    summary="run matrix multiplications and convolutions in bf16 on a CPU that has instructions for them",
    safety="rounding",
    reduces={"compute": 0.7},
    needs=(
        _INFERS,
        _CPU,
        Need(fact="cpu_has_bf16", relation="is", value=True),
        Need(fact="is_autocast", relation="is not", value=True),
    ),
    valid=ValidRange(choices=("bfloat16",)),
    combines_with=("channels-last-cpu", "compile-cpu"),
    doc=(
        "With AMX, multiplications take a fraction of the time; with AVX-512 BF16 at best half. Small batches gain"
        " little, because weights are converted in each call."
    ),
    source="torch.amp documentation, CPU; Intel, Accelerate PyTorch with AMX",
)
CHANNELS_LAST_CPU = Knob(
    name="channels-last-cpu",
    family=FAMILY,
    summary="keep images and convolution weights in the layout that oneDNN's convolutions read",
    safety="exact",
    reduces={"compute": 0.4},
    needs=(_INFERS, _CPU, Need(fact="has_convolutions", relation="is", value=True)),
    combines_with=("autocast-cpu",),
    doc="Avoids a conversion around each convolution. Sums are added up in a different order.",
    source="PyTorch tutorial, Channels last memory format; oneDNN documentation",
)
COMPILE_CPU = Knob(
    name="compile-cpu",
    family=FAMILY,
    summary="compile the model for the CPU: fused loops and no Python between operators",
    safety="rounding",
    answers={"eager-mode": 1.0, "thread-oversubscription": 0.5},
    reduces={"compute": 0.4},
    needs=(_INFERS, _CPU, Need(fact="is_compiled", relation="is not", value=True)),
    valid=ValidRange(choices=("default",)),
    gates=("loss", "memory"),
    doc=(
        "The first call compiles for seconds to minutes, with a C++ compiler that must be installed; inputs whose"
        " shapes keep changing are compiled again."
    ),
    source="torch.compile documentation, CPU backend of inductor",
)
SDPA_CPU = Knob(
    name="fused-attention-cpu",
    family=FAMILY,
    summary="compute attention in one operator on the CPU",
    safety="rounding",
    answers={"eager-mode": 0.3},
    reduces={"compute": 0.3},
    saves_memory=0.2,
    needs=(_INFERS, _CPU, _TRANSFORMERS),
    valid=ValidRange(choices=("sdpa",)),
    doc="For models of the transformers library that the script builds with eager attention.",
    source="transformers documentation, attention backends",
)
KV_CACHE = Knob(
    name="kv-cache",
    family=FAMILY,
    summary="keep keys and values between the tokens of a generation",
    safety="rounding",
    answers={"no-kv-cache": 1.0},
    needs=(_INFERS, _TRANSFORMERS),
    doc=(
        "For `generate` of the transformers library where the script or the model's configuration turns the cache off."
        " Sums are added up in a different order, so a token whose two best candidates are equally likely can differ."
    ),
    source="transformers documentation, caching; transformer-deploy issue 49",
)
STATIC_CACHE = Knob(
    name="static-kv-cache",
    family=FAMILY,
    summary="generate with a cache of fixed size, so that transformers compiles a step of it",
    safety="rounding",
    answers={"no-kv-cache": 1.0, "eager-mode": 0.8, "host-bound": 0.8},
    needs=(_INFERS, _GPU, _TRANSFORMERS, Need(fact="is_compiled", relation="is not", value=True)),
    excludes=("kv-cache", "compile"),
    gates=("loss", "memory"),
    doc=(
        "`cache_implementation='static'`: transformers compiles the decoding step with CUDA graphs on a GPU. The cache"
        " has the memory of the longest sequence from the start."
    ),
    source="transformers documentation, static KV cache and torch.compile",
)
SESSION_THREADS = Knob(
    name="session-threads",
    family=FAMILY,
    summary="another number of threads for each operator of ONNX Runtime",
    safety="exact",
    answers=_THREAD_FINDINGS,
    reduces={"compute": 0.9},
    needs=(_INFERS, _CPU, _ONNX, _CORES),
    valid=ValidRange(least=1, most=256),
    doc=(
        "By default, ONNX Runtime takes as many threads as the machine has cores, whatever a container is allowed, and"
        " binds them. Sums over more threads are added up in a different order."
    ),
    source="ONNX Runtime documentation, thread management; onnxruntime issue 19384",
)
SESSION_SPINNING = Knob(
    name="session-spinning",
    family=FAMILY,
    summary="threads of ONNX Runtime that wait for work sleep, and leave their cores to whoever needs them",
    safety="exact",
    answers={"thread-oversubscription": 0.8, "preprocessing": 0.3},
    reduces={"compute": 0.5},
    needs=(_INFERS, _CPU, _ONNX),
    valid=ValidRange(choices=("off",)),
    doc=("Threads that spin start an operator some microseconds earlier, and hold up whatever else needs the core."),
    source="ONNX Runtime documentation, session.intra_op.allow_spinning",
)
SESSION_GRAPH = Knob(
    name="session-graph",
    family=FAMILY,
    summary="let ONNX Runtime apply all optimizations of the graph, where the script allows it fewer",
    safety="rounding",
    reduces={"compute": 0.5},
    needs=(_INFERS, _ONNX, Need(fact="session_is_optimized", relation="is", value=False)),
    valid=ValidRange(choices=("all",)),
    doc="Fuses operators and chooses layouts. Fused operators round at other points; loading takes longer.",
    source="ONNX Runtime documentation, graph optimizations",
)
KNOBS = (
    SESSION_THREADS,
    SESSION_SPINNING,
    SESSION_GRAPH,
    TORCH_THREADS,
    ONE_THREAD,
    WAIT_PASSIVELY,
    AUTOCAST_CPU,
    CHANNELS_LAST_CPU,
    COMPILE_CPU,
    SDPA_CPU,
    KV_CACHE,
    STATIC_CACHE,
)


def changes(facts: JobFacts) -> Iterator[Change]:
    yield from _of_sessions(facts) if facts.runs_onnx else _of_torch(facts)


def _of_sessions(facts: JobFacts) -> Iterator[Change]:
    share = max(int(facts.cores_per_rank or 1), 1)
    for count in dict.fromkeys((share, max(share // 2, 1), 1)):
        if count != facts.session_threads:
            yield setting(SESSION_THREADS, count, patch="onnx_session", threads=count)
    yield setting(SESSION_SPINNING, "off", patch="onnx_session", spinning=False)
    yield setting(SESSION_GRAPH, "all", patch="onnx_session", optimize=True)


def _of_torch(facts: JobFacts) -> Iterator[Change]:
    for count in dict.fromkeys((*thread_counts(facts), 1)):
        if count != facts.threads_per_rank:
            yield setting(TORCH_THREADS, count, patch="num_threads", count=count)
    is_set_by_script = bool(facts.script_sets_threads)
    if not is_set_by_script and 1 not in thread_counts(facts):
        yield setting(ONE_THREAD, environment={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    yield setting(WAIT_PASSIVELY, environment={"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"})
    yield setting(AUTOCAST_CPU, "bfloat16", patch="autocast", dtype="bfloat16")
    yield setting(CHANNELS_LAST_CPU, patch="channels_last")
    yield setting(COMPILE_CPU, "default", patch="compile", mode="default")
    yield setting(SDPA_CPU, "sdpa", patch="fused_attention", implementation="sdpa")
    yield setting(KV_CACHE, patch="kv_cache")
    yield setting(STATIC_CACHE, patch="kv_cache", static=True)
