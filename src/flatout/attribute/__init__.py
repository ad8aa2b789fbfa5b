"""Attribute every nanosecond of each rank to a part, and waits to the rank that caused them.

`rank.attribute_rank` turns one rank's event table into a timeline of parts. `job.attribute_job` takes the timelines of
all ranks, splits communication into transfer, wait and bubble, and charges each wait to the rank that caused it.
`docs/glossary.md` defines the terms.
"""
