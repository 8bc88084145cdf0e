"""The native layout: objects that are Kafka logs, plain or in zstd frames."""
