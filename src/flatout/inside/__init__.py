"""The code that runs inside the user's training process. It uses only the standard library and torch, and never
makes the job fail.

It is loaded from outside: `startup/` comes first on PYTHONPATH. Its `sitecustomize` installs the hooks in
`failure.pre_torch_hooks` and, after `import torch`, calls `install.install`, which hooks torch as requested by
environment variables.

    protocol        the names that both sides use; the only module that the rest of Flatout imports
    recording/      what happens in each step, and the file of steps
    phases/         what is done at certain steps: counting FLOPs, tracing, stopping the job
    liveness/       heartbeats and stacks, for a process that watches from outside
    failure/        how a process failed
    checkpoints/    when the script saves, and saving without torn files
    overlay/        redirection of files that a trial's script would overwrite
    data_cache/     reads of files from copies on the node
    packed_reads/   reads of files from the shards of a pack
    loader_stages/  how long each stage of making a batch takes
    checks/         whether a trial still computes the right numbers
    equal_tables    whether all ranks have the same table for NCCL
    patches/        the changes that a tuning tries inside the process
    blocks/         changes that are switched on and off while the job trains

Every call from torch is guarded: an error in Flatout's code is written to `inside-<host>.log` (`log`), and the recorder
does nothing. No other Flatout module is imported here.
"""
