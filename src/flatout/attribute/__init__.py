"""EventTables of all ranks -> where every nanosecond of each rank went, and which rank made the others wait.

`rank.attribute_rank` takes one rank's events to a timeline of parts; `job.attribute_job` takes the timelines of
all ranks, splits communication into transfer, wait and bubble, and charges waiting to the rank that began it.
The words are defined in `docs/glossary.md`.
"""
