"""Snapshot -> DoctorReport: what this machine is, and what of it slows a training job down.

A check judges only a `Snapshot`, so that a machine can be judged elsewhere. What could not be read is `unknown`, with
the reason; it is never `ok`. Nothing is changed on the machine, and nothing here reads it: `probe` does.
"""
