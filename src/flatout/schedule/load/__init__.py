"""Job histories of other tools and data sets as `Job` records; one format a file."""
