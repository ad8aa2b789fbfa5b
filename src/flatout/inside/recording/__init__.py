"""The recorder: what happens in each step of a rank, and how it is written down.

In: events of the training loop, from the hooks of `install`. Out: the step file, one row per step. `recorder` takes the
events, `step_detector` decides where a step ends, `step_rows` and `steady_state` make the rows, `step_file` writes
them. What is done between certain steps only, such as tracing, is decided in `phases/`.
"""
