"""PyTorch, CUDA and the driver: versions that go together, and debugging switches that were left on."""

from __future__ import annotations

from flatout.doctor.check import CheckOutcome, check, fail, info, named, ok, warn
from flatout.doctor.machine import SMI_QUERY, Machine
from flatout.doctor.unknown import NotHereError, NotReadError

_TORCH = "PyTorch documentation, https://docs.pytorch.org/docs/stable/"
_CUDA = "CUDA C++ Programming Guide, environment variables; CUDA compatibility guide"
_ENVIRONMENT = "the environment of this process"
_WRONG = "the job sets or removes the variable itself: run doctor in the job's environment"


def _set(machine: Machine, **bad: tuple[str, ...]) -> list[str]:
    """Variables that have one of the values; no values: any."""
    environment = machine.environment
    return [
        f"{name}={environment[name]}"
        for name, values in bad.items()
        if environment.get(name, "") != "" and (not values or environment[name].upper() in values)
    ]


@check(
    "driver-answers",
    "gpu",
    title="the driver of the GPUs answers",
    read="`nvidia-smi -q`, and NVIDIA GPUs on the PCI bus",
    expected="it describes the GPUs",
    source="NVIDIA nvidia-smi manual",
    cost="no job runs on the GPUs",
    fix="`Driver/library version mismatch`: reboot, or load the module again; else look at the kernel log for NVRM",
    when_wrong="a container without the NVIDIA runtime has neither the tool nor the GPUs",
)
def driver_answers(machine: Machine) -> CheckOutcome:
    output = machine.snapshot.outputs.get(SMI_QUERY)
    if (output is None or output.text is None) and machine.has_nvml and machine.gpus:
        why = "was not given" if output is None else f"gave nothing: {output.problem}"
        return ok(
            f"driver {machine.smi.driver or 'of unknown version'}, {len(machine.gpus)} GPUs, through NVML alone:"
            f" `{SMI_QUERY}` {why}"
        )
    if output is None:
        raise NotReadError(f"no output of `{SMI_QUERY}` is in what was read")
    if output.text is None:
        if machine.num_gpus:
            if output.is_missing and machine.is_container:
                return info(f"{machine.num_gpus} GPUs on the bus, but this container has no driver's tools")
            return fail(f"{machine.num_gpus} NVIDIA GPUs on the bus, but {output.problem}")
        if output.is_missing:
            raise NotHereError("there is no NVIDIA GPU on the bus, and no driver")
        raise NotReadError(output.problem)
    return ok(f"driver {machine.smi.driver or 'of unknown version'}, {len(machine.gpus)} GPUs")


@check(
    "driver-kernel-module",
    "software",
    title="the driver's module and its libraries have one version",
    read="/proc/driver/nvidia/version against `nvidia-smi -q`, Driver Version",
    expected="the same",
    source="NVIDIA driver installation guide",
    cost="new processes cannot use the GPUs until the module is loaded again",
    fix="reboot, or unload and load the module",
    when_wrong="never seen to be",
)
def driver_kernel_module(machine: Machine) -> CheckOutcome:
    driver = machine.smi.driver
    if driver is None:
        raise NotReadError("`nvidia-smi -q` gives no driver version")
    module = machine.file("/proc/driver/nvidia/version")
    return ok(driver) if driver in module else fail(f"libraries {driver}, module: {module.splitlines()[0][:120]}")


@check(
    "cuda-driver",
    "software",
    title="the driver supports the CUDA that PyTorch was built with",
    read="torch/version.py (not imported) against `nvidia-smi -q`, CUDA Version",
    expected="the driver's CUDA is at least as new; within one major version an older driver works in part",
    source=_CUDA,
    cost="older major version: no kernel starts; older minor: some kernels are compiled at first use, or missing",
    fix="a newer driver, or a PyTorch for the driver's CUDA",
    when_wrong="the vendor's forward compatibility package is installed (cuda-compat)",
)
def cuda_driver(machine: Machine) -> CheckOutcome:
    if "torch" not in machine.packages:
        raise NotReadError("the Python that runs Flatout has no torch")
    built = machine.packages.get("cuda")
    if built is None:
        if machine.num_gpus:
            return fail(
                f"torch {machine.packages['torch']} is built without CUDA, and there are {machine.num_gpus} GPUs"
            )
        return info(f"torch {machine.packages['torch']} is built without CUDA")
    driver = machine.smi.cuda
    if driver is None:
        raise NotReadError("`nvidia-smi -q` gives no CUDA version")
    has, needs = _version(driver), _version(built)
    if has >= needs:
        return ok(f"torch is built with {built}, the driver supports {driver}")
    if has[0] == needs[0]:
        return info(f"torch is built with {built}, the driver supports {driver}: minor version compatibility applies")
    return fail(f"torch is built with {built}, the driver supports {driver}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


@check(
    "cuda-blocking-launch",
    "software",
    title="kernels are launched without waiting for each",
    read=_ENVIRONMENT + ": CUDA_LAUNCH_BLOCKING",
    expected="not set, or 0",
    source=_CUDA,
    cost="CPU and GPU never overlap: steps of many small kernels take a multiple",
    fix="unset CUDA_LAUNCH_BLOCKING",
    when_wrong=_WRONG,
)
def blocking_launch(machine: Machine) -> CheckOutcome:
    bad = _set(machine, CUDA_LAUNCH_BLOCKING=("1",))
    return fail(named(bad)) if bad else ok("not set")


@check(
    "cuda-tools-left",
    "software",
    title="no profiler or debugger is injected into CUDA",
    read=_ENVIRONMENT + ": CUDA_INJECTION64_PATH, COMPUTE_PROFILE, CUDA_PROFILE",
    expected="not set",
    source=_CUDA,
    cost="each launch and copy is recorded: per cents to a multiple of the step",
    fix="unset them",
    when_wrong="while profiling on purpose",
)
def tools_left(machine: Machine) -> CheckOutcome:
    bad = _set(machine, CUDA_INJECTION64_PATH=(), COMPUTE_PROFILE=("1",), CUDA_PROFILE=("1",))
    return warn(named(bad)) if bad else ok("not set")


@check(
    "cuda-tf32-override",
    "software",
    title="TF32 is not turned off for all libraries",
    read=_ENVIRONMENT + ": NVIDIA_TF32_OVERRIDE",
    expected="not 0",
    source=_CUDA,
    cost="FP32 matrix products leave the tensor cores: up to 8 times slower on A100",
    fix="unset NVIDIA_TF32_OVERRIDE, and choose in the script",
    when_wrong="full FP32 precision is wanted",
)
def tf32_override(machine: Machine) -> CheckOutcome:
    bad = _set(machine, NVIDIA_TF32_OVERRIDE=("0",))
    return warn(named(bad)) if bad else ok("not set to 0")


@check(
    "cuda-one-queue",
    "software",
    title="kernels of several streams may run side by side",
    read=_ENVIRONMENT + ": CUDA_DEVICE_MAX_CONNECTIONS",
    expected="not set; 1 only for Megatron's tensor parallelism",
    source="Megatron-LM documentation; PyTorch FSDP issues",
    cost="with 1, FSDP's all-gathers wait behind compute kernels instead of running beside them",
    fix="unset it for FSDP",
    when_wrong="Megatron's overlap of tensor parallel communication needs 1 on GPUs before Blackwell",
)
def one_queue(machine: Machine) -> CheckOutcome:
    bad = _set(machine, CUDA_DEVICE_MAX_CONNECTIONS=("1",))
    return info(f"{named(bad)}: right for Megatron, wrong for FSDP") if bad else ok("not set to 1")


@check(
    "cuda-visible-devices",
    "software",
    title="the job sees all GPUs of the host",
    read=_ENVIRONMENT + ": CUDA_VISIBLE_DEVICES, against `nvidia-smi -q`",
    expected="not set, or as many as there are",
    source=_CUDA,
    cost="the GPUs that are hidden do nothing",
    fix="unset it, if the others are yours",
    when_wrong="a scheduler gave this job a part of the host",
)
def visible_devices(machine: Machine) -> CheckOutcome:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ok("not set: all")
    shown = [part for part in value.split(",") if part.strip() and part.strip() != "-1"]
    if not shown:
        return (warn if machine.num_gpus else info)(f"CUDA_VISIBLE_DEVICES={value!r} hides all GPUs")
    if len(set(shown)) < len(shown):
        return fail(f"CUDA_VISIBLE_DEVICES={value} names a GPU twice")
    return (
        ok(f"{len(shown)} GPUs")
        if len(shown) >= len(machine.gpus)
        else info(f"{len(shown)} of {len(machine.gpus)} GPUs")
    )


@check(
    "torch-debug-mode",
    "software",
    title="PyTorch's distributed debugging is off",
    read=_ENVIRONMENT
    + ": TORCH_DISTRIBUTED_DEBUG, TORCH_NCCL_BLOCKING_WAIT, NCCL_BLOCKING_WAIT, TORCH_NCCL_DESYNC_DEBUG, "
    "TORCH_SHOW_DISPATCH_TRACE",
    expected="not set, OFF or INFO, 0",
    source=_TORCH + "distributed.html#debugging-torch-distributed-applications",
    cost="DETAIL checks each collective with another one first; blocking waits stop the CPU at each",
    fix="unset them",
    when_wrong="while a hang is being looked for",
)
def debug_mode(machine: Machine) -> CheckOutcome:
    bad = _set(
        machine,
        TORCH_DISTRIBUTED_DEBUG=("DETAIL",),
        TORCH_NCCL_BLOCKING_WAIT=("1",),
        NCCL_BLOCKING_WAIT=("1",),
        TORCH_NCCL_DESYNC_DEBUG=("1",),
        TORCH_SHOW_DISPATCH_TRACE=("1",),
    )
    return warn(named(bad)) if bad else ok("not set")


@check(
    "torch-allocator",
    "software",
    title="the caching allocator is on",
    read=_ENVIRONMENT + ": PYTORCH_NO_CUDA_MEMORY_CACHING",
    expected="not set",
    source=_TORCH + "notes/cuda.html#cuda-memory-management",
    cost="each tensor is a cudaMalloc and a cudaFree, which wait for the GPU: a multiple of the step",
    fix="unset PYTORCH_NO_CUDA_MEMORY_CACHING",
    when_wrong="while memory errors are being looked for",
)
def allocator(machine: Machine) -> CheckOutcome:
    bad = _set(machine, PYTORCH_NO_CUDA_MEMORY_CACHING=())  # PyTorch asks only whether it is set
    return fail(named(bad)) if bad else ok("not set")


@check(
    "torch-compile-disabled",
    "software",
    title="torch.compile is not turned off",
    read=_ENVIRONMENT + ": TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE",
    expected="not set",
    source=_TORCH + "torch.compiler.html",
    cost="compiled models run eagerly, without a word",
    fix="unset them",
    when_wrong="jobs that compile nothing",
)
def compile_disabled(machine: Machine) -> CheckOutcome:
    bad = _set(machine, TORCH_COMPILE_DISABLE=("1",), TORCHDYNAMO_DISABLE=("1",))
    return warn(named(bad)) if bad else ok("not set")


@check(
    "omp-threads",
    "software",
    title="the ranks' CPU threads fit the cores",
    read=_ENVIRONMENT
    + ": OMP_NUM_THREADS, against allowed CPUs, control groups and ranks (LOCAL_WORLD_SIZE, else GPUs)",
    expected="threads x ranks at most the cores; torchrun sets 1 where nothing is set",
    source=_TORCH + "elastic/run.html",
    cost="too many: threads of all ranks fight for cores, and launches come late; too few: slow work on the CPU",
    fix="OMP_NUM_THREADS = cores / ranks, less the loader's workers",
    when_wrong="ranks that are bound to cores of their own see only theirs here",
)
def omp_threads(machine: Machine) -> CheckOutcome:
    value = machine.environment.get("OMP_NUM_THREADS", "")
    cores = min(len(machine.cpus_allowed), machine.cpu_quota or float("inf"))
    ranks = machine.num_ranks_here
    if not value:
        return info(f"not set: torchrun sets 1, plain Python one a core of {cores:g}")
    threads = int(value.split(",")[0])
    if threads * ranks > cores:
        return warn(f"{threads} threads x {ranks} ranks on {cores:g} cores")
    return ok(f"{threads} threads x {ranks} ranks on {cores:g} cores")
