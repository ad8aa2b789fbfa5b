"""Predict the speedup of a change before it is measured, by replaying the traces with the change.

`predict.predict` gives a `Prediction` with an interval, or the reason why there is none; `calibrate` learns from
measurements, and `history` stores them.
"""
