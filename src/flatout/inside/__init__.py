"""What runs inside the user's training process: the standard library and torch only. It never makes the job fail.

Loaded from outside: `startup/` comes first on PYTHONPATH; its `sitecustomize` puts in the hooks of `early`, and after
`import torch` calls `install.install`. From there on, in: optimizer steps, backward passes and DataLoader batches, as
hooks report them. Out: `rank{R}.steps.jsonl` and `rank{R}.json` in the folder named by FLATOUT_RECORDING.

Every entry from torch is guarded: an error of ours is written to `inside-<host>.log`, and the recorder steps aside.
No other room of Flatout is imported here, and no other room imports this one.
"""
