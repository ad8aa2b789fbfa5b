"""The catalogue of changes that can be made from outside a job, one file per family, and the choice of changes to try.

`candidates.candidates` picks from the catalogue for a diagnosis, `combine.combine` merges changes that fit together,
and `arguments` reads the user's own `--knob`s. `forbidden` refuses settings that are fast and wrong. Nothing is applied
here: `inside/` applies patches, `trial/` and `emit/` the rest.
"""
