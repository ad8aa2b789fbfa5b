"""The catalogue of changes: what can be set from outside a job, one file per family, and which changes to try.

`candidates.candidates` picks from the catalogue for a diagnosis, `combine.combine` merges changes that fit together,
and `arguments` reads the user's own `--knob`s. `forbidden` refuses settings that are fast and wrong. Nothing is applied
here: `inside/` applies patches, `trial/` and `emit/` the rest.
"""
