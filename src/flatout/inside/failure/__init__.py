"""Note how a process failed, from its start to its end, whichever way it ends.

In: exceptions and exit texts. Out: one file per failed process. The `pre_torch_hooks` are in place before the script
starts and must stay light; the `failure_hooks` take over once torch is imported; `failure_notes` writes the file.
"""
