"""The policies by name; each is one file, and `flatout.testing.policies` has the tests that each must pass."""
