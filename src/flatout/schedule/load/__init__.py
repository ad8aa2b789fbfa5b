"""Readers of other tools' and data sets' job histories as `ClusterJob` records; one format per file."""
