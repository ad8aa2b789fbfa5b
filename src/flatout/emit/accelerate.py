"""A configuration file for `accelerate launch --config_file`, of what it knows.

Fields are those of `accelerate.commands.config.ClusterConfig` (1.15). DDP's own keywords are not among them: they are
given in the code, as `DistributedDataParallelKwargs`, and said in the notes.
"""

from __future__ import annotations

from typing import Any

from flatout.emit.heading import commented
from flatout.emit.settings import Setter, settings
from flatout.emit.yaml_text import yaml_text
from flatout.records.change import Change
from flatout.records.tuning import Emitted, Tuning


def _autocast(change: Change, found: dict[str, Any]) -> str | None:
    del change
    found["mixed_precision"] = "bf16"
    return None


def _compile(change: Change, found: dict[str, Any]) -> str | None:
    found["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": change.value}
    return None


def _binding(change: Change, found: dict[str, Any]) -> str | None:
    del change
    found["enable_cpu_affinity"] = True
    return None


def _ddp(change: Change, found: dict[str, Any]) -> str:
    del found
    assert change.patch is not None
    words = ", ".join(f"{name}={value!r}" for name, value in change.patch.parameters.items())
    return f"in the code: Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({words})])"


def _hook(change: Change, found: dict[str, Any]) -> str:
    del found
    if change.value == "bf16":
        return "in the code: DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)"
    if change.value.startswith("powersgd"):
        rank = change.value.rpartition("-")[2]
        option = f"comm_state_option={{'matrix_approximation_rank': {rank}}}"
        return f"in the code: DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.POWER_SGD, {option})"
    return "Accelerate has no setting for it; use `flatout run`"


def _no_sync(change: Change, found: dict[str, Any]) -> str:
    del found
    passes = f"Accelerator(gradient_accumulation_steps={change.value})"
    return f"in the code: {passes}, and `with accelerator.accumulate(model)`"


def _non_blocking(change: Change, found: dict[str, Any]) -> str:
    del change, found
    return "in the code: Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))"


_SETTERS: dict[str, Setter] = {
    "autocast": _autocast,
    "compile": _compile,
    "bind-cores": _binding,
    "torchrun-numa-binding": _binding,
    "ddp-bucket": _ddp,
    "ddp-bucket-view": _ddp,
    "ddp-static-graph": _ddp,
    "ddp-compression": _hook,
    "ddp-no-sync": _no_sync,
    "non-blocking-copies": _non_blocking,
}


def emit(tuning: Tuning) -> Emitted:
    found, notes = settings(tuning, _SETTERS, "Accelerate")
    ranks = tuning.machine.get("num_ranks", "1")
    hosts = tuning.machine.get("num_hosts", "1")
    is_cpu = tuning.machine.get("device") == "cpu"
    several = "MULTI_CPU" if is_cpu else "MULTI_GPU"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": several if ranks.isdigit() and int(ranks) > 1 else "NO",
        "num_processes": int(ranks) if ranks.isdigit() else 1,
        "num_machines": int(hosts) if hosts.isdigit() else 1,
        "mixed_precision": "no",
        "use_cpu": is_cpu,
        **found,
    }
    if config["distributed_type"] == "MULTI_CPU":  # without MPI it starts one rank, and says nothing
        notes += (f"accelerate launch starts {ranks} ranks on the CPU by MPI only (`mpirun_config`), torchrun without",)
    return Emitted(path="accelerate.yaml", text=commented(tuning) + yaml_text(config), notes=notes)
