"""Write a `Tuning` as files that other tools read: one module per target, each with `emit(tuning) -> Emitted`.

`tuned_toml` is our own format, and is read back; `write.diff` shows what a file would become, `write.write` writes it.
`Emitted.notes` say what a tool has no setting for: nothing is omitted silently.
"""
