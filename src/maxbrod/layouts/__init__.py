"""How families of archives name, write and read segments. Bytes and objects; no Kafka, no catalog, no Spark."""
