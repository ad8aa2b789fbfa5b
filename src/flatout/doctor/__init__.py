"""Judge a Snapshot of a machine: describe the machine, and find what slows a training job down.

A check judges only a `Snapshot`, so checks can run on another machine. A check whose input could not be read is
`unknown`, with the reason, and never `ok`. Nothing here reads or changes the machine: `probe` reads it.
"""
