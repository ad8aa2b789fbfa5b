"""Find the schedulers that can be reached from here, and report how they were searched for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.records.submission import Scheduler
from flatout.submit.ray_cluster import own_dashboard

_PING_S = 20.0


class FoundScheduler(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a scheduler is available, and how that was decided."""

    scheduler: Scheduler
    is_there: bool
    looked_for: str
    address: str | None = None


def found_schedulers(environment: Mapping[str, str]) -> tuple[FoundScheduler, ...]:
    """Look for each scheduler, in the order of preference."""
    path = environment.get("PATH")
    ray = ray_address(environment)
    config = _kubernetes_config(environment)
    has_sbatch = shutil.which("sbatch", path=path) is not None
    has_kubectl = shutil.which("kubectl", path=path) is not None
    has_cluster = Path(config).is_file() or "KUBERNETES_SERVICE_HOST" in environment
    return (
        FoundScheduler(
            scheduler="slurm",
            is_there=has_sbatch and _slurm_answers(environment),
            looked_for="sbatch on the PATH, with a controller that `scontrol ping` reaches",
        ),
        FoundScheduler(
            scheduler="ray",
            is_there=ray is not None,
            looked_for="RAY_API_SERVER_ADDRESS, RAY_ADDRESS as http://..., a Ray cluster of yours on this machine",
            address=ray,
        ),
        FoundScheduler(
            scheduler="kubernetes",
            is_there=has_kubectl and has_cluster,
            looked_for=f"kubectl on the PATH, with {config}",
        ),
    )


def _kubernetes_config(environment: Mapping[str, str]) -> str:
    configured = environment.get("KUBECONFIG", "").split(":")[0]
    return configured or str(Path(environment.get("HOME", "~")) / ".kube/config")


def _slurm_answers(environment: Mapping[str, str]) -> bool:
    """Whether Slurm's controller answers; Slurm's commands can be installed without a cluster."""
    try:
        done = subprocess.run(
            ["scontrol", "ping"], env=environment, capture_output=True, text=True, timeout=_PING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "is UP" in done.stdout


def ray_address(environment: Mapping[str, str]) -> str | None:
    """Return the address of the dashboard, to which Ray jobs are submitted."""
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        address = environment.get(name, "")
        if address.startswith(("http://", "https://")):
            return address.rstrip("/")
    return own_dashboard(environment)
