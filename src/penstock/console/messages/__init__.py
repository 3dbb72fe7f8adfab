"""Messages of a topic: read, searched, filtered, decoded, and sent by hand."""
