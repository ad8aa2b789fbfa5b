"""Any record -> text, JSON, HTML, Perfetto: the only place that formats numbers. One file a target."""
