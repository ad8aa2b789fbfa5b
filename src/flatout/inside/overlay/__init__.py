"""A trial's file system: changes to the user's files are redirected, and the script sees its own changes.

In: the names that the script opens, renames and removes. Out: the same names, or names below the folder of the trial.
`redirect` starts it. `file_overlay` knows where each file is. `patch_files` and `patch_libraries` insert it between the
script and the functions of Python, torch and safetensors.
"""
