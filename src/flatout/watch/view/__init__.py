"""The live view of a job. In: a running job. Out: `WatchStatus`, again and again, and the screen that shows it.

run_status      the ranks of `flatout run`, from their heartbeats
profile_status  the ranks of `flatout profile`, from their step files
process_status  processes that Flatout did not start, from `/proc` and NVML
node_status     the ranks on other nodes, from the ledger's folder
gpu_status      GPUs by UUID and by process
screen          the terminal: keys in, lines out
"""
