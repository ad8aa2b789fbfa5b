"""Write a configuration file for `accelerate launch --config_file`, with the changes for which it has fields.

The fields are those of `accelerate.commands.config.ClusterConfig` (1.15). DDP's keywords are not among them: the notes
show how to set them in the code, as `DistributedDataParallelKwargs`.
"""

from __future__ import annotations

from typing import Any

from flatout.emit.heading import commented
from flatout.emit.settings import Setter, Settings, settings
from flatout.emit.yaml_text import yaml_text
from flatout.records.change import Change
from flatout.records.tuning import Emitted, Tuning


def _autocast(change: Change, values: Settings) -> str | None:
    del change
    values["mixed_precision"] = "bf16"
    return None


def _compile(change: Change, values: Settings) -> str | None:
    values["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": change.value}
    return None


def _binding(change: Change, values: Settings) -> str | None:
    del change
    values["enable_cpu_affinity"] = True
    return None


def _ddp(change: Change, values: Settings) -> str:
    del values
    assert change.patch is not None
    words = ", ".join(f"{name}={value!r}" for name, value in change.patch.parameters.items())
    return f"in the code: Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({words})])"


def _hook(change: Change, values: Settings) -> str:
    del values
    if change.value in ("bf16", "fp16"):
        kind = change.value.upper()
        return f"in the code: DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.{kind})"
    if change.value.startswith("powersgd"):
        rank = change.value.rpartition("-")[2]
        option = f"comm_state_option={{'matrix_approximation_rank': {rank}}}"
        return f"in the code: DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.POWER_SGD, {option})"
    return "Accelerate has no setting for it; use `flatout run`"


def _no_sync(change: Change, values: Settings) -> str:
    del values
    passes = f"Accelerator(gradient_accumulation_steps={change.value})"
    return f"in the code: {passes}, and `with accelerator.accumulate(model)`"


def _non_blocking(change: Change, values: Settings) -> str:
    del change, values
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
    values, notes = settings(tuning, _SETTERS, "Accelerate")
    num_ranks = _count(tuning, "num_ranks")
    is_cpu = tuning.machine.get("device") == "cpu"
    several = "MULTI_CPU" if is_cpu else "MULTI_GPU"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": several if num_ranks > 1 else "NO",
        "num_processes": num_ranks,
        "num_machines": _count(tuning, "num_hosts"),
        "mixed_precision": "no",
        "use_cpu": is_cpu,
        **values,
    }
    # without MPI, accelerate starts only one rank, without an error message
    if config["distributed_type"] == "MULTI_CPU":
        how = "only with MPI (`mpirun_config`); torchrun starts them without it"
        notes += (f"accelerate launch starts {num_ranks} ranks on the CPU {how}",)
    return Emitted(path="accelerate.yaml", text=commented(tuning) + yaml_text(config), notes=notes)


def _count(tuning: Tuning, name: str) -> int:
    """Return a count for the machine, or 1 if it is unknown."""
    text = tuning.machine.get(name, "1")
    return int(text) if text.isdecimal() else 1
