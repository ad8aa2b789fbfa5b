"""Judge a Snapshot of a machine: what it is, and what about it slows down a training job.

A check judges only a `Snapshot`, so that another machine can judge it. What could not be read is `unknown`, with the
reason; it is never `ok`. Nothing here changes the machine or reads it: `probe` reads it.
"""
