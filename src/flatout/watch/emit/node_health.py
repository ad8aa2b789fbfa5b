"""Health checks of nodes for schedulers. Out: a script for Slurm, and a script and its monitor for Kubernetes.

Slurm runs its `HealthCheckProgram` as root on each node; Kubernetes' node-problem-detector runs custom plugins, reads
their exit codes (0 healthy, 1 not, 2 unknown) and sets a node condition. Both scripts only call `flatout watch node`,
whose exit codes are these. The one for Slurm drains its node; nothing here runs them.
"""

from __future__ import annotations

import json

_HISTORY = "/var/lib/flatout/gpu-history.jsonl"
_CHECK = f'flatout watch node --history "${{GPU_HISTORY:-{_HISTORY}}}"'

SLURM = f"""#!/bin/sh
# Written by flatout watch emit node-health, for HealthCheckProgram in slurm.conf. It drains this node if a GPU is to be
# reset or the node drained, and never resumes it. A check that fails says nothing, so it drains nothing.
mkdir -p "$(dirname "${{GPU_HISTORY:-{_HISTORY}}}")"
verdict=$({_CHECK} 2>/dev/null)
[ $? -eq 1 ] || exit 0
reason=$(printf '%s' "$verdict" | head -n 1)
scontrol update NodeName="${{SLURMD_NODENAME:-$(hostname -s)}}" State=DRAIN Reason="flatout: $reason"
"""

KUBERNETES_CHECK = f"""#!/bin/sh
# Written by flatout watch emit node-health, for node-problem-detector: one line, and the exit code of the check.
mkdir -p "$(dirname "${{GPU_HISTORY:-{_HISTORY}}}")"
verdict=$({_CHECK} 2>&1)
code=$?
printf '%s\\n' "$verdict" | head -n 1
exit $code
"""


def monitor_text() -> str:
    """Return the configuration of a custom plugin monitor, which sets the node condition `GpuUnhealthy`."""
    condition, timeout = "GpuUnhealthy", "30s"
    return (
        json.dumps(
            {
                "plugin": "custom",
                "pluginConfig": {
                    "invoke_interval": "60s",
                    "timeout": timeout,
                    "max_output_length": 120,
                    "concurrency": 1,
                },
                "source": "flatout-node-health",
                "metricsReporting": True,
                "conditions": [
                    {"type": condition, "reason": "GpusAreHealthy", "message": "nothing calls for an action"}
                ],
                "rules": [
                    {
                        "type": "permanent",
                        "condition": condition,
                        "reason": "GpuNeedsAction",
                        "path": "/etc/node-problem-detector/flatout-node-check.sh",
                        "timeout": timeout,
                    }
                ],
            },
            indent=2,
        )
        + "\n"
    )
