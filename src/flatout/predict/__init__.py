"""What a change would bring, before it is measured: the traces replayed with the change.

`predict.predict` gives a `Prediction` with an interval, or the reason why there is none; `calibrate` learns from what
was measured, and `history` keeps it.
"""
