"""A trial's file system: what the script would overwrite or remove is redirected, and it sees its own changes.

In: the names that the script opens, renames and removes. Out: the same names, or those below the folder of the trial.
`redirect` starts it, `file_overlay` knows where each file is, `patch_files` and `patch_libraries` put it between the
script and Python's functions, torch and safetensors.
"""
