"""Real schedulers: a controller that reads a scheduler, decides, and acts on it; dry run by default.

A `ClusterView` (jobs, nodes, how busy their GPUs were) goes in, `Action`s with reasons come out of `decide`, a pure
function. Readers and clients of a scheduler are in the files named after it. Only `controller` changes a cluster.
"""
