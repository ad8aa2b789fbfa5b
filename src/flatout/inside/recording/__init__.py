"""The recorder, which detects the steps of a rank and writes a row for each.

In: events of the training loop, from the hooks of `install`. Out: the step file, one row per step. `recorder` takes the
events, `step_detector` decides where a step ends, `step_rows` and `steady_state` make the rows, and `step_file` writes
them. `phases/` decides what is done only between certain steps, such as tracing.
"""
