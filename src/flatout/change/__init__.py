"""The catalogue of changes: what can be set from outside a job, one file a family, and which of it to try.

`candidates.candidates` picks from the catalogue for a diagnosis, `combine.combine` merges changes that fit together,
`arguments` reads the user's own `--knob`s. `fence` keeps out what is fast and wrong. Nothing is applied here: that is
done by `inside/` (patches), `trial/` and `emit/`.
"""
