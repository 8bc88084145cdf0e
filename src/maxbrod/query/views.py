"""The views of an archive: which there are, and how keys and values are decoded in each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.query.tables import make_tables
from maxbrod.table.decoding import decoded_column
from maxbrod.table.formats import format_of, parse_formats
from maxbrod.table.narrowing import named_in
from maxbrod.table.registry import archived_schemas
from maxbrod.table.views import RECORDS, RecordView, SmallView

if TYPE_CHECKING:
    from maxbrod.archive.opening import Archive
    from maxbrod.engine.session import Session
    from maxbrod.layouts.schemas_topic import SchemasTopic
    from maxbrod.query.scope import QueryScope, Selected
    from maxbrod.table.views import Decoded, View


class Views:
    """Looks at what is asked for alone: a sample of a topic, or the archived schemas."""

    def __init__(self, spark: Session, archive: Archive, selected: Selected, scope: QueryScope) -> None:
        self._spark = spark
        self._archive = archive
        self._selected = selected
        self._scope = scope
        self._formats = {"key": parse_formats(scope.key), "value": parse_formats(scope.value)}
        self._archived: SchemasTopic | None = None

    def every(self) -> list[View]:
        return [self._records(), *map(self._topic, self._selected.views()), *self._small()]

    def named_in(self, sql: str) -> list[View]:
        """Those that a query reads: each one that is made costs time."""
        small = {each.name: each for each in self._small()}
        topics = self._selected.views()
        return [
            self._records() if name == RECORDS else small.get(name) or self._topic(name)
            for name in named_in(self._spark, sql, (RECORDS, *topics, *small))
        ]

    def _small(self) -> list[SmallView]:
        found = self._selected
        tables = make_tables(self._archive, found.moment, found.topics, found.newest)
        return [SmallView(name=name, arrow_schema=schema, make=make) for name, (schema, make) in tables.items()]

    def _records(self) -> RecordView:
        """Where there is one topic, it is decoded as that; where there are more, as far as that needs no topic."""
        topics = sorted(self._selected.topics)
        return self._view(RECORDS, topics[0] if len(topics) == 1 else None)

    def _topic(self, name: str) -> RecordView:
        return self._view(name, name, topic_view=True)

    def _view(self, name: str, topic: str | None, *, topic_view: bool = False) -> RecordView:
        plain = RecordView(name=name, options=self._selected.options, topic=topic if topic_view else None)
        decoded: dict[str, Decoded] = {}
        for column, formats in self._formats.items():
            wanted = format_of(formats, topic)
            if topic is None and wanted.of_topic:
                continue
            found = decoded_column(
                column,
                wanted,
                topic=topic,
                sample=lambda column: plain.load(self._spark, {column}).select(column),
                schemas=self._schemas,
                permissive=self._scope.permissive,
            )
            decoded |= {} if found is None else {column: found}
        return replace(plain, decoded=decoded)

    def _schemas(self) -> SchemasTopic:
        self._archived = self._archived or archived_schemas(self._selected.options)
        return self._archived
