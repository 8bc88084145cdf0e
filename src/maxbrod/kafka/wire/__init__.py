"""Connections, security, versions and errors of Kafka's protocol; who leads what."""
