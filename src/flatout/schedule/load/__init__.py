"""Job histories of other tools and data sets as `ClusterJob` records; one format a file."""
