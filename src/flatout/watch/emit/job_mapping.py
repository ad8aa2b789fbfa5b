"""Scripts with which dcgm-exporter labels the GPUs of a node with the Slurm job that uses them (`hpc_job`).

Out: a prolog and an epilog for Slurm. dcgm-exporter reads one file per GPU in the folder of `--hpc-job-mapping-dir`,
named by the GPU's index, with one job ID per line. Slurm runs both scripts as root; nothing here runs them.
"""

from __future__ import annotations

FOLDER = "/var/lib/dcgm-exporter/job-mapping"
_HEAD = f"""#!/bin/sh
# Written by flatout watch emit dcgm-job-mapping. Start dcgm-exporter with --hpc-job-mapping-dir {FOLDER}
folder={FOLDER}
gpus=${{SLURM_JOB_GPUS:-${{CUDA_VISIBLE_DEVICES:-}}}}
case "$gpus" in *[!0-9,]*) exit 0 ;; esac  # UUIDs, as on MIG: those have no index
"""
PROLOG = f"""{_HEAD}mkdir -p "$folder"
for gpu in $(echo "$gpus" | tr , ' '); do
    grep -qxF "$SLURM_JOB_ID" "$folder/$gpu" 2>/dev/null || echo "$SLURM_JOB_ID" >> "$folder/$gpu"
done
exit 0
"""
EPILOG = f"""{_HEAD}for gpu in $(echo "$gpus" | tr , ' '); do
    [ -f "$folder/$gpu" ] || continue
    grep -vxF "$SLURM_JOB_ID" "$folder/$gpu" > "$folder/$gpu.new"
    mv "$folder/$gpu.new" "$folder/$gpu"
done
exit 0
"""
