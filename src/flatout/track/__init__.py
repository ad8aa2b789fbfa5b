"""A history of results: add to it, and find where a job became faster or slower."""
