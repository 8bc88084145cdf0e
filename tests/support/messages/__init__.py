"""Messages that only members of groups send, as `maxbrod.kafka.wire.messages` has them."""
