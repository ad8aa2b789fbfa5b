"""The public test kit: synthetic inputs and stand-ins, for Flatout's own tests and for those of its extensions."""

from flatout.testing.trace_builder import TraceBuilder, write_traces

__all__ = ["TraceBuilder", "write_traces"]
