"""How a process failed: noted from its start until its end, whichever way it ends.

In: exceptions and exit texts. Out: one file per process that failed. `pre_torch_hooks` are in place before the script
starts and must stay light; `failure_hooks` take over once torch is imported; `failure_notes` writes the file.
"""
