"""Checks of PyTorch, CUDA and the driver: versions that do not match, and debugging switches left on."""

from __future__ import annotations

from flatout.doctor.check import check, fail, info, named, ok, warn
from flatout.doctor.machine import SMI_QUERY, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotHereError, NotReadError

_TORCH = "PyTorch documentation, https://docs.pytorch.org/docs/stable/"
_CUDA = "CUDA C++ Programming Guide, environment variables; CUDA compatibility guide"
_ENVIRONMENT = "the environment of this process"
_WRONG = "the job sets or removes the variable itself: run doctor in the job's environment"


def _matching(machine: Machine, **values: tuple[str, ...]) -> str:
    """Name the variables that have one of the values, or any value if none is listed; empty if there are none."""
    matching = []
    for name, bad_values in values.items():
        value = machine.environment.get(name, "")
        if value and (not bad_values or value.upper() in bad_values):
            matching.append(f"{name}={value}")
    return named(matching)


@check(
    "driver-answers",
    "gpu",
    topic="GPU driver",
    read="`nvidia-smi -q`, and NVIDIA GPUs on the PCI bus",
    expected="the driver describes the GPUs",
    source="NVIDIA nvidia-smi manual",
    cost="jobs cannot use the GPUs",
    fix="`Driver/library version mismatch`: reboot, or reload the module; otherwise look for NVRM in the kernel log",
    when_wrong="a container without the NVIDIA runtime has neither nvidia-smi nor the GPUs",
)
def driver_answers(machine: Machine) -> CheckOutcome:
    output = machine.snapshot.outputs.get(SMI_QUERY)
    has_text = output is not None and output.text is not None
    if not has_text and machine.has_nvml and machine.gpus:
        problem = "is not in the input" if output is None else f"gave no output: {output.problem}"
        return ok(f"{_driver(machine)}, through NVML only: `{SMI_QUERY}` {problem}")
    if output is None:
        raise NotReadError(f"the input has no output of `{SMI_QUERY}`")
    if output.text is None:
        if machine.num_gpus:
            if output.is_missing and machine.is_container:
                return info(f"{machine.num_gpus} GPUs on the bus, but this container lacks the driver's tools")
            return fail(
                f"the GPU driver does not answer: {machine.num_gpus} NVIDIA GPUs on the bus, but {output.problem}"
            )
        if output.is_missing:
            raise NotHereError("there is no NVIDIA GPU on the bus, and no driver")
        raise NotReadError(output.problem)
    return ok(_driver(machine))


def _driver(machine: Machine) -> str:
    version = machine.smi.driver or "of unknown version"
    return f"driver {version}, {len(machine.gpus)} GPUs"


@check(
    "driver-kernel-module",
    "software",
    topic="versions of the driver's module and libraries",
    read="/proc/driver/nvidia/version against `nvidia-smi -q`, Driver Version",
    expected="the same",
    source="NVIDIA driver installation guide",
    cost="new processes cannot use the GPUs until the module is reloaded",
    fix="reboot, or reload the module",
    when_wrong="no known case",
)
def driver_kernel_module(machine: Machine) -> CheckOutcome:
    driver = machine.smi.driver
    if driver is None:
        raise NotReadError("`nvidia-smi -q` reports no driver version")
    module = machine.file("/proc/driver/nvidia/version")
    if driver in module:
        return ok(driver)
    return fail(f"the driver has two versions: libraries {driver}, module: {module.splitlines()[0][:120]}")


@check(
    "cuda-driver",
    "software",
    topic="CUDA versions of PyTorch and the driver",
    read="torch/version.py (not imported) against `nvidia-smi -q`, CUDA Version",
    expected="the driver's CUDA is at least as new as PyTorch's; within one major version an older driver partly works",
    source=_CUDA,
    cost="with an older major version no kernel starts; with an older minor version kernels are compiled at first use",
    fix="install a newer driver, or a PyTorch for the driver's CUDA",
    when_wrong="the vendor's forward compatibility package is installed (cuda-compat)",
)
def cuda_driver(machine: Machine) -> CheckOutcome:
    torch = machine.packages.get("torch")
    if torch is None:
        raise NotReadError("the Python that runs Flatout has no torch")
    built = machine.packages.get("cuda")
    if built is None and machine.num_gpus:
        return fail(f"torch {torch} is built without CUDA, and there are {machine.num_gpus} GPUs")
    if built is None:
        return info(f"torch {torch} is built without CUDA")
    supported = machine.smi.cuda
    if supported is None:
        raise NotReadError("`nvidia-smi -q` reports no CUDA version")
    shown = f"torch is built with {built}, the driver supports {supported}"
    if _version(supported) >= _version(built):
        return ok(shown)
    if _version(supported)[0] == _version(built)[0]:
        return info(f"{shown}: minor version compatibility applies")
    return fail(f"the driver is too old: {shown}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


@check(
    "cuda-blocking-launch",
    "software",
    topic="blocking kernel launches",
    read=_ENVIRONMENT + ": CUDA_LAUNCH_BLOCKING",
    expected="not set, or 0",
    source=_CUDA,
    cost="CPU and GPU never overlap: steps with many small kernels take several times as long",
    fix="unset CUDA_LAUNCH_BLOCKING",
    when_wrong=_WRONG,
)
def blocking_launch(machine: Machine) -> CheckOutcome:
    bad = _matching(machine, CUDA_LAUNCH_BLOCKING=("1",))
    return fail(f"kernel launches block: {bad}") if bad else ok("not set")


@check(
    "cuda-tools-left",
    "software",
    topic="profilers and debuggers injected into CUDA",
    read=_ENVIRONMENT + ": CUDA_INJECTION64_PATH, COMPUTE_PROFILE, CUDA_PROFILE",
    expected="not set",
    source=_CUDA,
    cost="recording each launch and copy costs from a few per cent of the step to several times its length",
    fix="unset them",
    when_wrong="you profile deliberately",
)
def tools_left(machine: Machine) -> CheckOutcome:
    bad = _matching(machine, CUDA_INJECTION64_PATH=(), COMPUTE_PROFILE=("1",), CUDA_PROFILE=("1",))
    return warn(f"a profiler or debugger is injected into CUDA: {bad}") if bad else ok("not set")


@check(
    "cuda-tf32-override",
    "software",
    topic="TF32 override",
    read=_ENVIRONMENT + ": NVIDIA_TF32_OVERRIDE",
    expected="not 0",
    source=_CUDA,
    cost="FP32 matrix multiplications do not use the tensor cores: up to 8 times slower on A100",
    fix="unset NVIDIA_TF32_OVERRIDE, and set the precision in the script",
    when_wrong="full FP32 precision is wanted",
)
def tf32_override(machine: Machine) -> CheckOutcome:
    bad = _matching(machine, NVIDIA_TF32_OVERRIDE=("0",))
    return warn(f"TF32 is turned off: {bad}") if bad else ok("not set to 0")


@check(
    "cuda-one-queue",
    "software",
    topic="number of CUDA hardware queues",
    read=_ENVIRONMENT + ": CUDA_DEVICE_MAX_CONNECTIONS",
    expected="not set; 1 only for Megatron's tensor parallelism",
    source="Megatron-LM documentation; PyTorch FSDP issues",
    cost="with 1, FSDP's all-gathers wait behind compute kernels instead of overlapping with them",
    fix="unset it for FSDP",
    when_wrong="Megatron's overlap of tensor parallel communication needs 1 on GPUs before Blackwell",
)
def one_queue(machine: Machine) -> CheckOutcome:
    bad = _matching(machine, CUDA_DEVICE_MAX_CONNECTIONS=("1",))
    return info(f"{bad}: right for Megatron, wrong for FSDP") if bad else ok("not set to 1")


@check(
    "cuda-visible-devices",
    "software",
    topic="GPUs visible to the job",
    read=_ENVIRONMENT + ": CUDA_VISIBLE_DEVICES, against `nvidia-smi -q`",
    expected="not set, or all GPUs of the host",
    source=_CUDA,
    cost="the hidden GPUs idle",
    fix="unset the variable if the other GPUs are yours, too",
    when_wrong="a scheduler gave this job only some of the host's GPUs",
)
def visible_devices(machine: Machine) -> CheckOutcome:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ok("not set: all")
    visible = [gpu for gpu in value.split(",") if gpu.strip() not in ("", "-1")]
    if not visible:
        hidden = f"CUDA_VISIBLE_DEVICES={value!r} hides all GPUs"
        return warn(f"no GPU is visible to the job: {hidden}") if machine.num_gpus else info(hidden)
    if len(set(visible)) < len(visible):
        return fail(f"CUDA_VISIBLE_DEVICES={value} names a GPU twice")
    if len(visible) < len(machine.gpus):
        return info(f"{len(visible)} of {len(machine.gpus)} GPUs")
    return ok(f"{len(visible)} GPUs")


@check(
    "torch-debug-mode",
    "software",
    topic="PyTorch's distributed debugging",
    read=_ENVIRONMENT
    + ": TORCH_DISTRIBUTED_DEBUG, TORCH_NCCL_BLOCKING_WAIT, NCCL_BLOCKING_WAIT, TORCH_NCCL_DESYNC_DEBUG, "
    "TORCH_SHOW_DISPATCH_TRACE",
    expected="not set, OFF or INFO, 0",
    source=_TORCH + "distributed.html#debugging-torch-distributed-applications",
    cost="DETAIL checks each collective with an additional one; blocking waits stop the CPU at each collective",
    fix="unset them",
    when_wrong="you are investigating a hang",
)
def debug_mode(machine: Machine) -> CheckOutcome:
    bad = _matching(
        machine,
        TORCH_DISTRIBUTED_DEBUG=("DETAIL",),
        TORCH_NCCL_BLOCKING_WAIT=("1",),
        NCCL_BLOCKING_WAIT=("1",),
        TORCH_NCCL_DESYNC_DEBUG=("1",),
        TORCH_SHOW_DISPATCH_TRACE=("1",),
    )
    return warn(f"PyTorch runs in a debug mode: {bad}") if bad else ok("not set")


@check(
    "torch-allocator",
    "software",
    topic="PyTorch's caching allocator",
    read=_ENVIRONMENT + ": PYTORCH_NO_CUDA_MEMORY_CACHING",
    expected="not set",
    source=_TORCH + "notes/cuda.html#cuda-memory-management",
    cost="each tensor is a cudaMalloc and a cudaFree, which wait for the GPU: steps take several times as long",
    fix="unset PYTORCH_NO_CUDA_MEMORY_CACHING",
    when_wrong="you are investigating memory errors",
)
def allocator(machine: Machine) -> CheckOutcome:
    bad = _matching(machine, PYTORCH_NO_CUDA_MEMORY_CACHING=())  # PyTorch checks only whether it is set
    return fail(f"PyTorch's caching allocator is turned off: {bad}") if bad else ok("not set")


@check(
    "torch-compile-disabled",
    "software",
    topic="variables that turn torch.compile off",
    read=_ENVIRONMENT + ": TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE",
    expected="not set",
    source=_TORCH + "torch.compiler.html",
    cost="models run eagerly instead of compiled, without a message",
    fix="unset them",
    when_wrong="the job compiles nothing",
)
def compile_disabled(machine: Machine) -> CheckOutcome:
    bad = _matching(machine, TORCH_COMPILE_DISABLE=("1",), TORCHDYNAMO_DISABLE=("1",))
    return warn(f"torch.compile is turned off: {bad}") if bad else ok("not set")


@check(
    "omp-threads",
    "software",
    topic="CPU threads of the ranks",
    read=_ENVIRONMENT
    + ": OMP_NUM_THREADS, against allowed CPUs, control groups and ranks (LOCAL_WORLD_SIZE, else GPUs)",
    expected="threads x ranks at most the number of cores; torchrun sets 1 thread by default",
    source=_TORCH + "elastic/run.html",
    cost="too many threads compete for cores and delay launches; too few make work on the CPU slow",
    fix="set OMP_NUM_THREADS to cores / ranks, minus the data loader workers",
    when_wrong="bound ranks see only their own cores",
)
def omp_threads(machine: Machine) -> CheckOutcome:
    value = machine.environment.get("OMP_NUM_THREADS", "")
    cores = min(len(machine.cpus_allowed), machine.cpu_quota or float("inf"))
    num_ranks = machine.num_ranks_here
    if not value:
        return info(f"not set: torchrun sets 1, plain Python one per core of {cores:g}")
    num_threads = int(value.split(",")[0])
    shown = f"{num_threads} threads x {num_ranks} ranks on {cores:g} cores"
    return warn(f"more CPU threads than cores: {shown}") if num_threads * num_ranks > cores else ok(shown)
