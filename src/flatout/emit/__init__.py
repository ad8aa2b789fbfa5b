"""A `Tuning` as files that other tools read: one module a target, each with `emit(tuning) -> Emitted`.

`tuned_toml` is our own, and is read back; `write.diff` shows what a file would become, `write.write` writes it.
What a tool has no setting for is said in `Emitted.notes`, never left out in silence.
"""
