"""Changes applied inside the user's process: one file per family of patches, one function per patch, named after it.

In: FLATOUT_PATCHES, a JSON list of {"name": .., "parameters": {..}}, see `change.patches`. Out: torch classes and
functions that do the same thing in a different way, and `patches-<host>-<pid>.jsonl`, which reports the changes that
were actually made. A patch that does not fit leaves the job unchanged. An error in Flatout's code is logged, and the
script's own call is made.
"""
