"""Judge a Snapshot of a machine: describe the machine, and find what would slow a training job down.

A check judges only a `Snapshot`, so it can run on another machine than the one described. A check whose input could not
be read is `unknown`, with the reason, and never `ok`. Nothing here reads or changes the machine: `probe` reads it.
"""
