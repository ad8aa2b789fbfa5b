"""The changes that `flatout tune jax` tries: flags of XLA, and variables of JAX.

In: the platform and the number of devices. Out: the changes that suit them, and why others do not. Sources: XLA's
`xla.proto` and `debug_options_flags.cc`, JAX's pages "GPU performance tips", "GPU memory allocation" and "Persistent
compilation cache". Donated buffers cannot be set from outside: the profile's advice names `donate_argnums`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from flatout.errors import UsageError
from flatout.records.xla_tuning import XlaChange

_MIB = 1 << 20
_COMBINED = ("all_reduce", "all_gather", "reduce_scatter")


def _combine(mib: int) -> XlaChange:
    flags = tuple(f"--xla_gpu_{name}_combine_threshold_bytes={mib * _MIB}" for name in _COMBINED)
    return XlaChange(
        name=f"xla-combine={mib}",
        safety="exact",
        flags=flags,
        what=f"combines collectives up to {mib} MiB",
        platform="gpu",
        needs_several_devices=True,
    )


CHANGES: tuple[XlaChange, ...] = (
    XlaChange(
        name="xla-latency-hiding",
        safety="exact",
        flags=("--xla_gpu_enable_latency_hiding_scheduler=true",),
        what="orders operators so that collectives run behind compute",
        platform="gpu",
        needs_several_devices=True,
    ),
    _combine(128),
    _combine(512),
    XlaChange(
        name="xla-collective-overlap=2",
        safety="exact",
        flags=(
            "--xla_gpu_enable_latency_hiding_scheduler=true",
            "--xla_gpu_experimental_parallel_collective_overlap_limit=2",
        ),
        what="lets two collectives run at a time, behind compute",
        platform="gpu",
        needs_several_devices=True,
    ),
    XlaChange(
        name="xla-pipelined-collectives",
        safety="exact",
        flags=tuple(f"--xla_gpu_enable_pipelined_{name}=true" for name in _COMBINED),
        what="moves collectives of a loop into the next iteration",
        platform="gpu",
        needs_several_devices=True,
    ),
    XlaChange(
        name="xla-autotune=4",
        safety="rounding",
        flags=("--xla_gpu_autotune_level=4",),
        what="measures kernels of matrix multiplications and checks their results, XLA's default",
        platform="gpu",
    ),
    XlaChange(
        name="xla-triton-gemm=off",
        safety="rounding",
        flags=("--xla_gpu_enable_triton_gemm=false",),
        what="leaves matrix multiplications to cuBLAS",
        platform="gpu",
    ),
    XlaChange(
        name="xla-memory=0.92",
        safety="exact",
        environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"},
        what="lets JAX use 92 % of the GPU's memory instead of 75 %",
        platform="gpu",
    ),
    XlaChange(
        name="xla-cpu-threads",
        safety="exact",
        flags=("--xla_cpu_multi_thread_eigen=true",),
        what="lets one operator use several cores, XLA's default",
        platform="cpu",
    ),
    XlaChange(
        name="xla-optimization=3",
        safety="rounding",
        flags=("--xla_backend_optimization_level=3",),
        what="optimizes the compiled code fully, XLA's default",
        platform="cpu",
    ),
    XlaChange(
        name="jax-compilation-cache",
        safety="exact",
        environment={"JAX_COMPILATION_CACHE_DIR": "{cache}", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        what="keeps compiled programs from one start to the next",
        is_of_start=True,
    ),
)

# The first version of JAX whose XLA has only the names of the flags left: the fields of `DebugOptions` that they set
# are `reserved` in the descriptors of jaxlib 0.11.1 and 0.11.2, and fields in those of 0.9.2, 0.10.2 and 0.11.0.
_WITHOUT_EFFECT_SINCE = {"xla-pipelined-collectives": (0, 11, 1)}


def check_names(names: Iterable[str]) -> None:
    """Raise UsageError if a name is not that of a change."""
    known = {change.name for change in CHANGES}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise UsageError(
            f"`--only` must name a change of `flatout tune jax`, but is `{unknown}`", hint=", ".join(sorted(known))
        )


def offered(
    platform: str,
    num_devices: int,
    xla_flags: str,
    *,
    allows_rounding: bool,
    only: Collection[str] = (),
    jax: str = "",
) -> tuple[list[XlaChange], list[str]]:
    """Return the changes to try, and one line for each of this platform that the job cannot use.

    With names in `only`, other changes are not looked at. `jax` is the job's version of JAX.
    """
    chosen: list[XlaChange] = []
    reasons: list[str] = []
    for change in CHANGES:
        if only and change.name not in only:
            continue
        problem = _without_effect(change, jax) if change.platform == platform else ""
        problem = problem or _problem(change, platform, num_devices, xla_flags, allows_rounding=allows_rounding)
        if problem:
            reasons.append(f"{change.name}: {problem}")
        elif change.platform in (None, platform):
            chosen.append(change)
        elif only:
            reasons.append(f"{change.name}: it is a setting for {change.platform}, and the job runs on {platform}")
    return chosen, reasons


def _without_effect(change: XlaChange, jax: str) -> str:
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", jax)
    since = _WITHOUT_EFFECT_SINCE.get(change.name)
    if version is None or since is None or tuple(map(int, version.groups())) < since:
        return ""
    return f"XLA accepts its flags and ignores them since JAX {'.'.join(map(str, since))}"


def _problem(change: XlaChange, platform: str, num_devices: int, xla_flags: str, *, allows_rounding: bool) -> str:
    if change.platform not in (None, platform):
        return ""
    if change.needs_several_devices and num_devices < 2:
        return "it is about collectives, and the job has one device"
    if change.flags and all(flag in xla_flags.split() for flag in change.flags):
        return "the job already has it"
    if "XLA's default" in change.what and not any(flag.split("=")[0] in xla_flags for flag in change.flags):
        return "the job already has it: it is XLA's default"
    if change.safety == "rounding" and not allows_rounding:
        return "it changes rounding: --allow rounding"
    return ""


def environment_of(change: XlaChange | None, base: dict[str, str], cache: str) -> dict[str, str]:
    """Return the environment of a trial. A flag of the change comes last, and XLA takes the last of equal flags."""
    if change is None:
        return dict(base)
    changed = {name: value.replace("{cache}", cache) for name, value in change.environment.items()}
    if change.flags:
        changed["XLA_FLAGS"] = " ".join([*filter(None, [base.get("XLA_FLAGS", "")]), *change.flags])
    return {**base, **changed}
