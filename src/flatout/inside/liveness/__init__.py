"""How far a process has come, for one that watches it from outside: heartbeats, and stacks on request.

In: events of the training loop. Out: a heartbeat file per process, which can be read even while the process is stuck.
`heartbeat` has the hooks, `beat` the file, `stacks` the answer to the signal that asks for stacks, `exchange` the time
that DDP's exchange of gradients takes.
"""
