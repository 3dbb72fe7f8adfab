"""Reading Kafka as a member of a group: its assigned partitions, and its commits."""
