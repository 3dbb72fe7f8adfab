"""Record batches, Kafka's format version 2: building, checking and finding them."""
