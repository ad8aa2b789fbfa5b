"""Write a `Tuning` as files that other tools read: one module per target, each with `emit(tuning) -> Emitted`.

`tuned_toml` is Flatout's own format, and is read back. `write.diff` shows how a file would change, and `write.write`
writes it. `Emitted.notes` name the changes for which a tool has no setting, so that nothing is omitted silently.
"""
