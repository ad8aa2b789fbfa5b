"""The protocol between Flatout and the processes of a job: variables, file names, kinds and intervals that both use.

Flatout starts a job with the variables below in its environment. The code of `inside/`, loaded into the job's Python
processes, reads them and writes the files below, which Flatout reads while the job runs or afterwards.

This is the only file of `inside/` that the rest of Flatout imports. It holds constants and the names of files, decides
nothing and imports nothing: `startup/sitecustomize.py` reads it in every Python process of the job, and the job may
have an older Python than Flatout.
"""


class Variable:
    """Flatout's environment variables. Their names are written out only here."""

    # Settings of the recorder. `flatout profile` and `flatout tune` set them; a user can set them too.
    RECORDING = "FLATOUT_RECORDING"  # folder to record to; without it nothing is recorded
    STEPS = "FLATOUT_STEPS"  # number of steps to trace, DEFAULT_NUM_STEPS if unset
    WARMUP = "FLATOUT_WARMUP"  # number of steps before the trace; unset: until step times are stable
    LIGHT = "FLATOUT_LIGHT"  # 1: no trace
    LOADER_STAGES = "FLATOUT_LOADER_STAGES"  # 1: time the stages of making a batch
    FACTS = "FLATOUT_FACTS"  # 1: write the facts of the job even without a trace
    FLOPS = "FLATOUT_FLOPS"  # 0: do not count floating-point operations
    GRADIENTS = "FLATOUT_GRADIENTS"  # 1: measure the norms of the first steps' gradients
    DATA_CHECK = "FLATOUT_DATA_CHECK"  # 1: check the results of collectives when the job is stopped
    STOP_AFTER = "FLATOUT_STOP_AFTER"  # stop the job after this many measured steps, at a step boundary of all ranks
    STOP_AFTER_S = "FLATOUT_STOP_AFTER_S"  # the same after this many seconds
    STOP_RULE = "FLATOUT_STOP_RULE"  # JSON: how many steps a trial counts, see `records.stop_rule`
    OTHER_SAMPLES = "FLATOUT_OTHER_SAMPLES"  # start random numbers here when the first loader starts
    OTHER_ROUNDING = "FLATOUT_OTHER_ROUNDING"  # 1: disturb the weights by a rounding after the first update
    SEED = "FLATOUT_SEED"  # start torch's and numpy's random numbers here; a script that seeds them is not affected
    XLA_TRIAL = "FLATOUT_XLA_TRIAL"  # JSON: how a trial of `flatout tune jax` counts steps, see `inside.xla_steps`
    BLOCKS = "FLATOUT_BLOCKS"  # JSON: changes to switch on and off in blocks of steps, see `inside.blocks.schedule`

    # Other settings of the job's processes, with or without a recording.
    PATCHES = "FLATOUT_PATCHES"  # JSON list of the patches to apply, see `change.patches`
    COMPRESS = "FLATOUT_COMPRESS"  # JSON: how to compress the model that infers, see `inside.compression.apply`
    REPORTS = "FLATOUT_REPORTS"  # folder for the reports of patches if nothing is recorded
    DIVERT = "FLATOUT_DIVERT"  # folder for files of a trial that would overwrite the user's
    APART = "FLATOUT_APART"  # JSON: folders of which this process sees an overlay, see `overlay.enter`
    EARLIER = "FLATOUT_EARLIER"  # file that names what earlier trials have written, see `overlay.earlier`
    DATA_CACHE = "FLATOUT_DATA_CACHE"  # JSON: the folder of a cache of files, its size, and whose files
    PACKED = "FLATOUT_PACKED"  # JSON: folders of packs, and the data sets whose files are read from them
    SAFE_SAVE = "FLATOUT_SAFE_SAVE"  # 1: torch.save leaves a complete file or none
    HEARTBEAT = "FLATOUT_HEARTBEAT"  # folder for heartbeats
    CHECKPOINT_EVERY_S = "FLATOUT_CHECKPOINT_EVERY_S"  # seconds between checkpoints of `flatout.checkpoint`
    SAVES = "FLATOUT_SAVES"  # folder in which `flatout.checkpoint` notes what it saved and what failed
    NCCL_TABLE = "FLATOUT_NCCL_TABLE"  # table of Flatout's tuner plugin for NCCL, which reads this variable too
    NCCL_TABLE_COMPARED = "FLATOUT_NCCL_TABLE_COMPARED"  # checksum of the table, once the ranks have compared theirs

    # Settings that Flatout's own processes read.
    JOB = "FLATOUT_JOB"  # name of the job, the same each time its scheduler starts it
    TUNING = "FLATOUT_TUNING"  # marks the processes of one tuning run, to end those that outlive it
    OVERLAY = "FLATOUT_OVERLAY"  # 0: `flatout tune` keeps trials' files apart by hooks even if it could overlay folders
    REDFISH_USER = "FLATOUT_REDFISH_USER"  # for `--redfish`; never recorded
    REDFISH_PASSWORD = "FLATOUT_REDFISH_PASSWORD"
    DEBUG = "FLATOUT_DEBUG"  # show the traceback of an internal error


DEFAULT_NUM_STEPS = 3  # number of traced steps

# What the memory in a report of a compression is; `records.compression.MemoryKind` lists them.
GPU_PEAK = "gpu_peak"  # the most that torch's allocator held on all GPUs since the model was changed
RESIDENT_PEAK = "resident_peak"  # the most resident memory of the process since then
RESIDENT_PEAK_WITH_START = "resident_peak_with_start"  # the same since the process began

# Attributes of a model that is trained with a hook on its gradients, for the checkpoints of `flatout.checkpoint`.
GRADIENT_HOOK = "_flatout_gradient_hook"  # what the hook keeps; has state_dict and load_state_dict
GRADIENT_HOOK_STATE = "_flatout_gradient_hook_state"  # a restored state, until the hook is put on
LOSS_SCALE = "_flatout_loss_scale"  # if it is trained in fp16: {"scale": 65536.0, "good_steps": 12}


class FileName:
    """The names of one kind of file: the text before and after the part that names a rank, a host or a process."""

    def __init__(self, before: str, after: str) -> None:
        self.before = before
        self.after = after
        self.glob = self.of("*")

    def of(self, part: object) -> str:
        """Return the file name for a rank, a host or a process (see `process_name`)."""
        return self.before + str(part) + self.after

    def part(self, name: str) -> "str | None":
        """Return the part that names a rank, a host or a process; None if `name` is not of this kind."""
        part = name[len(self.before) : len(name) - len(self.after)]
        return part if part and name == self.of(part) else None

    def rank(self, name: str) -> "int | None":
        """Return the rank in `name`; None if `name` is not of this kind, or does not name a rank."""
        part = self.part(name)
        return int(part) if part is not None and part.isdecimal() else None


def process_name(hostname: str, pid: int) -> str:
    """Return the part of a file name that names a process of the job."""
    return hostname + "-" + str(pid)


def partial_name(name: str) -> str:
    """Return the name of a file while it is written; once complete, it is renamed to `name`."""
    return "." + name + ".part"


def complete_name(name: str) -> str:
    """Return the name that a file gets once it is complete; the name of a complete file is unchanged."""
    is_partial = name.startswith(".") and name.endswith(".part")
    return name[len(".") : -len(".part")] if is_partial else name


class File:
    """The files of a recording, and of the folders for heartbeats and redirected files."""

    # Files of a recording.
    RECORDING = "recording.json"  # marks the folder as a recording, and names its run
    HOST = FileName("host-", ".json")  # by host: the command on this host, and how it ended
    SAMPLES = FileName("host-", ".samples.jsonl")  # by host
    STORAGE = FileName("host-", ".storage.jsonl")  # by host: the counters of its file systems, while stages are timed
    STEPS = FileName("rank", ".steps.jsonl")  # by rank, see STEP_COLUMNS and StepFileEvent
    TRACE = FileName("rank", ".json")  # by rank
    PACKED_TRACE = FileName("rank", ".json.gz")
    STALL_TRACE = FileName("stall-rank", ".json")  # by rank: a second trace, of steps around a stall
    PACKED_STALL_TRACE = FileName("stall-rank", ".json.gz")
    FACTS = FileName("facts-rank", ".json")  # by rank
    GRADIENTS = FileName("gradients-rank", ".json")  # by rank
    MODEL_OUTPUTS = FileName("model-outputs-rank", ".json")  # by rank: digests of what a script that infers computed
    DATA_CHECK = FileName("data-check-rank", ".json")  # by rank
    FAILURE = FileName("failure-", ".json")  # by process, also in a folder for heartbeats
    PATCHES = FileName("patches-", ".jsonl")  # by process
    COMPRESSION = FileName("compression-", ".json")  # by process: what was done to the model that infers
    DIVERTED = FileName("diverted-", ".jsonl")  # by process
    STAGES = FileName("stages-", ".json")  # by process that makes or receives batches: the time of each stage
    LOG = FileName("inside-", ".log")  # by host: errors of `inside/`
    XLA = "xla"  # folder: the profiles of a JAX job, in one folder per process
    ATTEMPTS = "attempts"  # folder: a separate recording for each time that the ranks were restarted, from 1
    STATE = ".state"  # folder: how processes communicate while the job runs; removed afterwards
    PROCESSES = FileName("processes-", "")  # by host, in STATE: the Python processes of the job, see ProcessEvent

    # Files of a folder for heartbeats.
    HEARTBEAT = FileName("beat-", "")  # by process, see HEARTBEAT_FIELDS
    STACKS = FileName("stacks-", "")  # by process
    CRASH = FileName("crash-", "")  # by process: the stacks when a signal such as SIGSEGV ended it; empty if none did
    STDERR = FileName("stderr-", "")  # by process: the end of what Python wrote to standard error, see STDERR_BYTES
    CHILDREN = FileName("children-", ".json")  # by launcher: how its ranks ended
    FLIGHT_REQUEST = "flight-request"  # asks the ranks for the records of torch's flight recorder
    FLIGHT = FileName("flight-", ".json")  # by process: the answer
    TRACE_REQUEST = "trace-request"  # asks the ranks for a trace of some steps, see `liveness.asked_trace`
    LOADER_REQUEST = "loader-request"  # asks the ranks for other loader settings, see `liveness.adapted_loader`
    UNSAVED_ORDER = FileName("unsaved-order-rank", ".json")  # the loader whose position is not saved
    TRACE_FAILED = FileName("failed-rank", "")  # by rank, in the folder of the request: why there is no trace

    # Files of a folder for notes of saves.
    SAVES = FileName("saves-", ".jsonl")  # by process, see `checkpoint.notes`

    # Files of a folder for redirected files.
    TRIAL_BEGAN = ".began"  # files last changed before this file was created are the user's

    # Next to a checkpoint that torch.save has written under SAFE_SAVE.
    PREVIOUS = FileName("", ".previous")  # the previous checkpoint
    CHECKSUMS = FileName("", ".checksums")  # sizes and CRC-32s of both


# The library of the tuner plugin: the part of its name is the hash of its source.
PLUGIN_NAME = FileName("libnccl-tuner-flatout-", ".so")


class ProcessEvent:
    """Events that a Python process of the job notes in PROCESSES, as `<pid> <parent pid> <event>`."""

    PYTHON = "python"  # it was started with the recorder loaded
    TORCH = "torch"  # it has imported torch
    OLD_PYTHON = "old-python"  # it has imported torch, but its Python is too old for the recorder
    FAILED = "failed"  # the recorder could not be started


class StepFileEvent:
    """The values of the key `event` in the objects among the rows of a step file."""

    STARTED = "started"  # how the process spent the time before its first steps
    PLAN = "plan"  # which steps will be measured and traced
    FLOPS = "flops"  # floating-point operations of one step
    WINDOW = "window"  # which steps were traced
    STALL_WINDOW = "stall_window"  # which steps were traced again, because one of them was due to stall
    RECORDER = "recorder"  # time that the recorder itself took between two steps
    LOSSES = "losses"  # losses that were still on the GPU when the rows of their steps were written
    BLOCK = "block"  # a block of steps with one set of changes is complete
    RESTART = "restart"  # all rows so far belong to the first step
    STOP = "stop"  # the job is stopped at a step boundary
    END = "end"  # the process ends


EXIT = "exit"  # in `reason` of END: the process ended without an exception


class StopReason:
    """The values of `reason` in STOP."""

    STEPS = "steps"  # the number of steps in STOP_AFTER
    TIME = "time"  # the seconds in STOP_AFTER_S
    BLOCKS = "blocks"  # the last block of BLOCKS is complete
    # By STOP_RULE:
    ENOUGH = "enough"
    ABANDONED = "abandoned"
    MAX = "max"


STEP_COLUMNS = (
    "step",
    "start_ns",  # relative to `base_unix_ns` of the header
    "duration_ns",
    "loader_ns",  # time in the loader, waiting for batches
    "num_batches",
    "num_samples",
    "num_tokens",
    "num_backward",
    "is_skipped",  # skipped by a GradScaler that found infinities; null: unknown
    "kind",  # see StepKind
    "loss",
    "peak_memory_bytes",
    "num_alloc_retries",
    "checkpoint_ns",  # time in torch.save or torch.distributed.checkpoint, on the thread that trains
    # The columns below are missing in older recordings. Their times and checkpoint_ns are exclusive: what is within
    # another one belongs to the outer one.
    "loader_start_ns",  # making a loader's iterator, waiting for its first batch, and its end
    "evaluation_ns",
    "collection_ns",  # Python's garbage collector, if a collection took long enough to be recorded
    "num_full_collections",
    "compilation_ns",  # torch.compile
    "logging_ns",  # TensorBoard, Weights & Biases, MLflow
    "num_loader_ends",  # number of times that a loader ran out of batches
    "evaluation_loader_ns",  # part of evaluation_ns in which a loader starts or ends
    # Columns of a script whose steps are calls of a model; null in others.
    "model_ns",  # time inside the call
    "num_known_tokens",  # leading tokens of the call's first sequence that are those of the call before
)
NOT_RECORDED = "this process is not recorded"  # the end of a line in LOG that begins with the reason
STEP_FILE_DELAY_S = 1.0  # how long rows are buffered, which limits the data that a killed process loses


class StepKind:
    """The recorder's activity in a step."""

    ORDINARY = ""  # nothing
    FIRST = "first"
    FLOPS = "flops"  # its floating-point operations were counted
    PREPARE = "prepare"  # the profiler was prepared
    TRACED = "traced"  # in the first window or in that of a stall
    RECOVERY = "recovery"  # the previous step was disturbed
    SWITCHED = "switched"  # changes were switched before it, or shortly before it


MOST_KNOWN_TOKENS = 4096  # of a sequence are compared with those of the call before


# In a trace, the spans of a script that only infers.
MODEL_SPAN = "flatout:model"  # a call of the model whose calls are steps
SESSION_SPAN = "flatout:session"  # a run of ONNX Runtime, whose operators the trace does not have
OTHER_MODEL_SPAN = "flatout:other_model "  # and the name of its class: a call of another model with parameters


# Steps at the end of the warm-up whose times agreed with those of as many steps before; a short warm-up has fewer.
NUM_STABLE_WARMUP_STEPS = 5


NUM_WATCHED_BATCHES = 16  # batches per data set and process that a profile watches while they are made


class LoaderStage:
    """The stages of making a batch, in files of kind STAGES."""

    OPEN = "open"  # opening files
    READ = "read"  # reading from files, below Python's buffer
    DECOMPRESS = "decompress"
    DECODE = "decode"  # making values of a file's bytes: images, sound, tables, pickles
    TRANSFORM = "transform "  # and the name of a transform
    CODE = "code"  # everything else in the data set's own code
    COLLATE = "collate"  # putting samples together


LOADER_FROM_DEVICE = 0.9  # of a batch's bytes: it was read from storage; of which at most the rest: from memory
LOADER_REPORT_INTERVAL_S = 1.0  # how often a process renews its file of kind STAGES
MAX_LOADER_BATCHES = 4096  # batches per process whose times are written
MAX_LOADER_PASSES = 64  # passes through the data per process whose samples are written
MAX_LOADER_PLACES = 20  # places in the script's code per process that are written


# A folder that caches files.
CACHE_COPIES = "copies"  # folder: copies, by boot of the machine
CACHE_COUNTS = "counts"  # folder: by process, how many reads were hits
CACHE_USED = "used"  # file in a boot's folder of copies: their bytes
CACHE_MARK = "flatout-data-cache"  # file: the folder is a cache
CACHE_REPORT_INTERVAL_S = 1.0


# A folder into which `flatout data pack` has packed a data set.
PACK_INDEX = "index.json"  # file: the pack; there only if it is complete
PACK_SAMPLES = "samples.jsonl"  # file: the samples, in the order of the source
PACK_LOOKUP = "lookup.bin"  # file: rows of PACK_LOOKUP_ROW, sorted
PACK_LOOKUP_ROW = ">16sIQQ"  # start of the name's SHA-256, number of the shard, offset and size of the content


class FailureKind:
    """Kinds of failures, in files of kind FAILURE."""

    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    EXIT = "exit"  # the script ended itself by `sys.exit(text)`


class MemoryKind:
    """The memory that a process ran out of, in files of kind FAILURE."""

    DEVICE = "device"
    HOST = "host"


STDERR_BYTES = 4096  # size of STDERR: the number of bytes written so far, then the last ones, as a ring
STDERR_COUNT_BYTES = 8

REFUSED = "SystemExit"  # the exception in FAILURE if argparse refused the arguments


class OutputKind:
    """The fate of a file that a trial's script wrote or removed, in files of kind `DIVERTED`."""

    DIVERTED = "diverted"  # redirected, because the user had a file of this name
    KEPT = "kept"  # a file of the user's that the script has removed: it still exists
    NEW = "new"  # a new file, written where the script wants it, and removed after the trial
    FOLDER = "folder"  # a folder, created where the script wants it, and removed after the trial
    IN_PLACE = "in_place"  # a file of the user's that was changed in place: too large to be copied first
    READ_EARLIER = "read_earlier"  # a file that was read, although an earlier trial has written it
    OUTSIDE = "outside"  # a folder of which this process should see an overlay, but does not


# Caches stay shared between trials. These variables name their folders; the others are in the home folder.
CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_DATASETS_CACHE",
    "HF_HUB_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "CUDA_CACHE_PATH",
    "MPLCONFIGDIR",
    "PYTHONPYCACHEPREFIX",
)
HOME_CACHES = (".cache", ".triton", ".nv")

UNKNOWN_WRITER = "unknown"  # in a line of READ_EARLIER: it changed since the tuning began, and no trial reported it


class Phase:
    """The current activity of the training thread, in a heartbeat file."""

    COMPUTE = "compute"  # anything outside the other phases
    DATA = "data"  # waiting for a batch
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


# A heartbeat file is a header, which is one line of JSON, and then the fields below: for each, its name and the number
# of its 8-byte integers.
HEARTBEAT_HEADER_BYTES = 4096
HEARTBEAT_PHASES = (Phase.COMPUTE, Phase.DATA, Phase.CHECKPOINT, Phase.EVALUATION)  # in the order of their numbers
HEARTBEAT_MOST_GROUPS = 16  # maximum number of process groups whose collectives are counted
HEARTBEAT_BUCKETS = 64  # number of buckets for step times: bucket b counts times from 2**(b-1) to 2**b ns
# Finer buckets: fine bucket b counts times up to FIRST_NS * FACTOR**b, and the last one all longer times.
HEARTBEAT_FINE_BUCKETS = 288
HEARTBEAT_FINE_FIRST_NS = 1_000_000
HEARTBEAT_FINE_FACTOR = 1.05
HEARTBEAT_RECENT = 128  # number of the last steps whose times are kept; step n (from 1) is at (n - 1) % RECENT
HEARTBEAT_FIELDS = (
    ("change", 1),  # odd while the end of a step is being written
    ("rank", 1),  # -1: unknown, or not a rank
    ("world_size", 1),
    ("num_events", 1),  # events of any kind: the number grows while the job makes progress
    ("num_steps", 1),
    ("base_step", 1),  # steps that the optimizer had made before this process; -1: unknown
    ("has_loaded", 1),  # torch.load was called before the first step
    ("phase", 1),
    ("phase_since", 1),
    ("first_step_end", 1),
    ("last_step_end", 1),
    ("num_checkpoints", 1),
    ("checkpoint_step", 1),  # num_steps when the last checkpoint was complete; -1: none
    ("main_thread", 1),
    ("gives_stacks", 1),  # the signal handler is still ours
    ("has_ended", 1),  # the time at which the process ended without an exception; 0: it has not
    ("has_gpu", 1),
    ("gpu", 2),  # the two halves of the GPU's UUID; 0: unknown
    ("exchange", 4),  # see `Beat.exchanged`; all 0: unknown
    ("spent", len(HEARTBEAT_PHASES)),  # ns in each phase, excluding the current period in the current phase
    ("spent_at_first", len(HEARTBEAT_PHASES)),  # `spent` at the end of the first step
    ("spent_at_last", len(HEARTBEAT_PHASES)),  # `spent` at the end of the last step
    ("longest", len(HEARTBEAT_PHASES)),  # longest period in each phase, in ns; for compute, the longest step
    ("num_groups", 1),
    ("sequence", HEARTBEAT_MOST_GROUPS),  # collectives begun in each process group, as torch counts them
    ("buckets", HEARTBEAT_BUCKETS),
    ("fine_buckets", HEARTBEAT_FINE_BUCKETS),
    ("recent", HEARTBEAT_RECENT),  # ns of each of the last steps; 0 for the first step, which has no beginning
    ("recent_data", HEARTBEAT_RECENT),  # the part of it that was spent waiting for batches
    ("recent_away", HEARTBEAT_RECENT),  # the part of it that was spent in checkpoints and evaluations
    ("loader", 3),  # of the last epoch that began in training: workers, batches ahead, last request; 0: unknown or none
    ("loaded", 2),  # samples and tokens of the training batches so far; 0: their shapes do not show it
    ("loaded_values", 1),  # elements of the tensors by which these batches are counted
)

# The signal that asks a process for its stacks is SIGRTMIN plus this offset. Real-time signals have no fixed meaning;
# the C library uses the first two, and Valgrind uses the last.
STACKS_SIGNAL_OFFSET = 8
