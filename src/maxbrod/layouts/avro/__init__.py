"""The layout of Trivadis' kafka-backup: Avro object container files, one record of Kafka a record of Avro."""
