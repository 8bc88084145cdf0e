"""Segments and surveys of other layouts as JSON, for the way from the driver to the workers and back."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from maxbrod import strict_json
from maxbrod.layouts.foreign import ForeignSegment, Survey
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import AbortedTransaction, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


def encode_segment(segment: ForeignSegment) -> dict[str, Any]:
    return asdict(segment)


def decode_segment(fields: Mapping[str, Any]) -> ForeignSegment:
    aborted = tuple(AbortedTransaction(**each) for each in fields.get("aborted", ()))
    return ForeignSegment(**{**fields, "where": TopicPartition(**fields["where"]), "aborted": aborted})


def of_partition(survey: Survey, where: TopicPartition) -> Survey:
    """The part of a survey that the writer of one partition needs."""
    position = survey.positions.get(where)
    return replace(
        survey,
        segments=tuple(segment for segment in survey.segments if segment.where == where),
        topics={},
        gaps=(),
        groups=(),
        positions={} if position is None else {where: position},
        faults=(),
        doubts=(),
    )


def encode_survey(survey: Survey) -> str:
    """The JSON of a survey that `of_partition` has reduced."""
    return json.dumps(
        {
            "layout": survey.layout,
            "segments": [encode_segment(segment) for segment in survey.segments],
            "positions": [[where.topic, where.partition, offset] for where, offset in survey.positions.items()],
            "cluster_id": survey.cluster_id,
            "taken_at_ms": survey.taken_at_ms,
            "details": dict(survey.details),
        }
    )


def decode_survey(text: str) -> Survey:
    fields = strict_json.parse(text)
    positions = {
        TopicPartition(topic=topic, partition=partition): offset for topic, partition, offset in fields["positions"]
    }
    return Survey(
        **{**fields, "segments": tuple(decode_segment(each) for each in fields["segments"]), "positions": positions}
    )


def describe(layout: str, segment: ForeignSegment) -> str:
    """Everything needed to read a segment of another layout, as text."""
    return json.dumps({"layout": layout, "segment": encode_segment(segment)}, sort_keys=True)


def segment_of(details: str) -> tuple[str, ForeignSegment]:
    """The inverse of `describe`: the layout's name, and the segment."""
    found = strict_json.parse(details)
    return str(found["layout"]), decode_segment(found["segment"])


def decode_slice(values: dict[str, Any]) -> Slice:
    return Slice(**{**values, "aborted": tuple(AbortedTransaction(**each) for each in values["aborted"])})
