"""Reading Kafka without a group, from any offset: feeds of batches, and the timestamps of single records."""
