"""Commands about systems outside of the stream: gateways between them, and the receivers of webhooks."""
