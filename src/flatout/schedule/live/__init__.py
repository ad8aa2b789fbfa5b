"""Real schedulers: a controller that reads one, decides, and acts on it; dry run by default.

A `ClusterView` (jobs, nodes, how busy their GPUs were) goes in, `Action`s with reasons come out of `decide`, a pure
function. Readers and clients of one scheduler are in files of its name. Only `controller` changes a cluster.
"""
