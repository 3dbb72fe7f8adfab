"""Topic configs, with Kafka's names, defaults and meaning: text comes in, checked values go out."""
