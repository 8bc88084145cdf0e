import json, cramjam
from dataclasses import dataclass


@dataclass
class Snapshot:
    run_id: str
    taken_at_ms: int
    cluster: dict
    ends: dict
    topics: dict


def encode(s):
    ends = {}
    for p, e in sorted(s.ends.items()):
        l = ends.setdefault(p.topic_id, [])
        while len(l) < p.partition:
            l.append(None)
        l.append(e)
    return bytes(
        cramjam.zstd.compress(
            json.dumps(
                dict(run_id=s.run_id, taken_at_ms=s.taken_at_ms, cluster=s.cluster, ends=ends, topics=s.topics)
            ).encode()
        )
    )
