"""Show the progress of a process to a process that watches it from outside: heartbeats, and stacks on request.

In: events of the training loop. Out: a heartbeat file per process, which can be read even while the process is stuck.
`heartbeat` has the hooks, `beat` writes the file, `stacks` answers the signal that asks for stacks, and `exchange`
measures how long DDP exchanges gradients.
"""
