"""Real-time mode: records go through a query one by one, in milliseconds."""
