"""A proxy on loopback that breaks connections to Kafka and S3 on purpose, as tests ask for it.

    with FaultProxy(("127.0.0.1", port), protocol="kafka") as proxy:
        lost = proxy.add(LoseAnswer(on=KafkaMatch("Produce"), times=1))
        ...                                      # a client that connects to proxy.address
        assert proxy.fired[lost] == 1            # the fault really happened

`faults` has the values that say what to break and counts them, `stream` moves bytes, `connection` owns the two
sockets of one connection, `protocols` knows where a message begins and ends, and `server` listens.
Only loopback addresses are accepted as upstream.
"""
