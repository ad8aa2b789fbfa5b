"""Write any record as text, JSON, HTML or a Perfetto trace: the only package that formats numbers."""
