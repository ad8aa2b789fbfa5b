"""The public test kit: synthetic inputs and stand-ins, for the tests of Flatout and of its extensions."""

from flatout.testing.trace_builder import TraceBuilder, write_traces

__all__ = ["TraceBuilder", "write_traces"]
