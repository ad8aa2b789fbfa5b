"""Changes applied inside the user's process: one file per family of patches, one function per patch, named after it.

In: FLATOUT_PATCHES, a JSON list of {"name": .., "parameters": {..}}, see `change.patches`. Out: classes and functions
of torch that do the same thing in another way, and `patches-<host>-<pid>.jsonl`, which reports what was really done. A
patch that does not fit leaves the job unchanged. An error of ours is logged, and the script's own call is made.
"""
