"""Values of records as columns: bytes of a topic become typed columns, and rows become the bytes of records."""
