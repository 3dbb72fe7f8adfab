"""Late rows: counted and delivered, where plain Spark drops them silently."""
