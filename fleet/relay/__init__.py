"""Relay: joins clients to agents that they cannot dial, by the server name in TLS."""
