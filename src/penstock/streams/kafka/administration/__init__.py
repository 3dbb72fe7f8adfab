"""Administration of Kafka's topics and groups, and checks whether its brokers can be reached."""
