"""SQL over an archive of any layout: `records`, a view for each topic, and small tables about the archive.

Only tables that a query names are prepared, and only the columns that it uses are read.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.config import Config, StorageConfig, config_with
from maxbrod.errors import MaxbrodError, UsageError
from maxbrod.query.options import ScopeOptions
from maxbrod.query.scope import RESERVED, Selected, check_scope, select
from maxbrod.text import did_you_mean
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.session import Session, is_local, open_configured

if TYPE_CHECKING:
    from maxbrod.keywords import QueryKeywords, ScopeKeywords
    from maxbrod.query.views import Views
    from maxbrod.table.read.counts import Count
    from maxbrod.table.results import Collected
    from maxbrod.table.views import HeldTables


_LARGE_BYTES: Final = 256 << 20
"""The full compiler costs 5 s of processor time at the start; without it, Spark's work takes up to twice as long."""
_PLANNED_ROWS_MAX: Final = 100_000
"""With more rows of the catalog than this, Spark plans reads in a process of its own."""
_ENDING_S: Final = 5.0
"""Spark gives a Python worker about 4 s to end, and then ends it."""
_POLL_S: Final = 0.1
_QUERY: Final = re.compile(
    r"""\s* SELECT \s+ (?P<items>[\w\s,*()]+?) \s+ FROM \s+ (?P<table>`[^`]+`|[A-Za-z_]\w*)
        (?: \s+ GROUP \s+ BY \s+ (?P<by>[\w\s,]+?) )? (?: \s+ ORDER \s+ BY \s+ (?P<order>[\w\s,]+?) )? \s* ;? \s*""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_ITEM: Final = re.compile(
    r"(?P<what>topic|partition|(?i:count)\s*\(\s*[*1]\s*\))(?:\s+(?i:AS)\s+(?P<alias>[A-Za-z_]\w*))?", re.ASCII
)
_TYPES: Final = {"topic": pa.string(), "partition": pa.int32(), "count": pa.int64()}
_SPARK_TYPES: Final = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A planned query, ready to run."""

    sql: str
    frame: Any
    used: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The columns that tasks read of each view of records. Small tables are held as a whole."""


class Query:
    """Opens an archive for the length of a `with` block, and a Spark session as soon as a query needs one."""

    def __init__(
        self,
        config: Config,
        scope: ScopeOptions,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
    ) -> None:
        check_scope(scope)
        self._url = config.archive_url
        self._config = config
        self.scope: Final = scope
        self._given = session
        self._on_progress = on_progress
        self._undo = ExitStack()
        self._views: Views | None = None
        self._held: HeldTables | None = None

    def __enter__(self) -> Self:
        self._on_progress(Progress(phase="looking at the archive"))
        config = self._config
        self.archive: Archive = open_archive(self._url, config.storage, layout=config.layout, records=True)
        self.selected: Selected = select(self.archive, self.scope, layout=config.layout)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def start(self, sql: str = "") -> None:
        """Start Spark now, instead of with the first query that needs it. Meanwhile, small tables in `sql` are read."""
        if self._views is not None:
            return
        self._on_progress(Progress(phase="starting Spark"))
        size, rows = self._measure()
        few = rows <= _PLANNED_ROWS_MAX
        ahead = threading.Thread(target=self._look_ahead, args=(sql if few else "",), daemon=True)
        ahead.start()
        with ExitStack() as undo:
            opened = undo.enter_context(
                open_configured(
                    self._config.spark,
                    self._given,
                    jvm_works=size >= _LARGE_BYTES,
                    needs=needs_storage(self.archive.url, self._config.storage),
                )
            )
            from maxbrod.query.views import Views  # noqa: PLC0415 - pyspark
            from maxbrod.table.views import own_session  # noqa: PLC0415 - as above

            self._spark = undo.enter_context(own_session(opened))
            ahead.join()
            if not few or not hasattr(self._spark, "_jsparkSession"):
                # Spark Connect plans on its server, which cannot tell what it holds.
                self._held = None
            self._views = Views(self._spark, self.archive, self.selected, self.scope, planned=few, held=self._held)
            self._undo = undo.pop_all()

    def _look_ahead(self, sql: str) -> None:
        """Import what planning needs, which includes pyspark, and read small tables: both while the JVM starts."""
        import maxbrod.query.views  # noqa: PLC0415
        import maxbrod.table.results  # noqa: F401, PLC0415
        from maxbrod.table.scans import mentioned_in  # noqa: PLC0415
        from maxbrod.table.views import HeldTables, RecordView  # noqa: PLC0415

        self._held = HeldTables()
        options, topics = self.selected.options, self.selected.views()
        for name in mentioned_in(sql, (RESERVED[0], *topics)):
            # An error is raised again when the query is planned, if the query needs the table at all.
            with suppress(MaxbrodError):
                self._held.read(RecordView(name=name, options=options, topic=name if name in topics else None))

    def _measure(self) -> tuple[int, int]:
        """The bytes of the topics, and the rows that the catalog has of them."""
        size = count = 0
        for rows in self.archive.catalog.portions(["raw_bytes"], topic_ids=self.selected.newest):
            size += pc.sum(rows["raw_bytes"]).as_py() or 0
            count += len(rows)
        return size, count

    @property
    def spark(self) -> Session:
        self.start()
        return self._spark

    def is_stuck(self) -> bool:
        """True if tasks of cancelled statements leave no room for the next one in a Spark of our own, after a while.

        A task of a cancelled join of 48,000 records with themselves ran on for more than two minutes: between two
        batches of rows, compiled code of Spark does not look whether it is cancelled.
        """
        from maxbrod.work.jobs import context_of, tasks_running  # noqa: PLC0415 - Arrow

        if self._views is None or self._given is not None:
            return False
        context = context_of(self._spark)
        if context is None or not is_local(str(context.master)):
            return False
        until = time.monotonic() + _ENDING_S
        while tasks_running(self._spark) >= context.defaultParallelism:
            if time.monotonic() > until:
                return True
            time.sleep(_POLL_S)
        return False

    def restart(self) -> None:
        """Stop Spark and start it again."""
        self._undo.close()
        self._views = self._held = None
        self.start()

    def is_alive(self) -> bool:
        """True if Spark still answers."""
        try:
            return bool(self.spark.sql("SELECT 1").columns)
        except Exception:  # noqa: BLE001 - any of PySpark's, py4j's or the socket's: it does not
            return False

    def tables(self) -> dict[str, Sequence[str]]:
        """The columns of every table, without those inside decoded values."""
        return self._started().columns()

    def _started(self, sql: str = "") -> Views:
        self.start(sql)
        assert self._views is not None  # noqa: S101 - just made
        return self._views

    def answer(self, sql: str, *, limit: int | None = None, form: str = "arrow") -> Collected:
        """The rows of a query. Spark is started only if the catalog does not have the answer."""
        return self._known(sql, limit, form) or self.collect(self.ask(sql), limit=limit, form=form)

    def _known(self, sql: str, limit: int | None, form: str) -> Collected | None:
        """The answer to a plain count of records; None: ask Spark."""
        question = parse_count(sql)
        if question is None:
            return None
        # Names ignore case.
        name = question.table.lower()
        topic = next((view for view in self.selected.views() if view.lower() == name), None)
        if topic is None and name != RESERVED[0]:
            return None
        from maxbrod.table.read.counts import count_records, count_whole  # noqa: PLC0415 - pyspark, without a JVM
        from maxbrod.table.read.options import parse_options  # noqa: PLC0415
        from maxbrod.table.results import Collected  # noqa: PLC0415

        options = {**self.selected.options, **({} if topic is None else {"topics": topic})}
        parsed = parse_options(options)
        counts = count_whole(parsed)
        if counts is None and self._measure()[1] <= _PLANNED_ROWS_MAX:
            counts = count_records(parsed)
        if counts is None:
            return None
        rows = question.table_of(counts)
        more = limit is not None and len(rows) > limit
        types = {column.name: _SPARK_TYPES[column.type] for column in rows.schema}
        return Collected(types=types, table=_shown(rows[:limit], form), more=more)

    def ask(self, sql: str, *, narrowed: bool = True) -> Question:
        """Plan a query. Reads of the topics only a sample, to infer types. UsageError: not a valid query.

        `narrowed`: read only what the filters of the query leave. Spark applies the filters in any case.
        """
        try:
            return self._ask(sql, narrowed=narrowed)
        except UsageError as error:
            missing = _MISSING_VIEW.search(error.message)
            question = missing and did_you_mean(missing["name"], [*RESERVED, *self.selected.views()])
            if question:
                error.hint = f"{question} {error.hint or ''}".rstrip()
            raise

    def _ask(self, sql: str, *, narrowed: bool) -> Question:
        from maxbrod.table.read.columns import USUAL  # noqa: PLC0415
        from maxbrod.table.scans import find_usage, query_frame  # noqa: PLC0415 - as above
        from maxbrod.table.sql_errors import plain_errors  # noqa: PLC0415
        from maxbrod.table.views import create_views  # noqa: PLC0415

        views = self._started(sql).named_in(sql)
        self._on_progress(Progress(phase="planning"))
        held = self._held.frames(self._spark, views) if narrowed and self._held is not None else None
        if held is not None:
            create_views(self._spark, views, lambda view: view.over(held[view.name]))
            return Question(sql=sql, frame=query_frame(self._spark, sql, _HINTS))
        schemas = {view.name: view.schema for view in views}
        with tempfile.TemporaryDirectory(prefix="maxbrod-query-") as folder:
            usage = find_usage(self._spark, sql, schemas, Path(folder), _HINTS)
        columns, scopes = usage.columns, usage.scopes if narrowed else {}
        create_views(
            self._spark,
            views,
            lambda view: view.load(self._spark, columns.get(view.name, USUAL), scopes.get(view.name, ())),
        )
        with plain_errors():
            return Question(sql=sql, frame=self._spark.sql(sql.strip().rstrip(";")), used=usage.columns)

    def collect(self, question: Question, *, limit: int | None = None, form: str = "arrow") -> Collected:
        """Run a query and fetch its rows. `form` is one of `maxbrod.table.results`."""
        from maxbrod.table.results import collect, show  # noqa: PLC0415
        from maxbrod.table.scans import reads_enough  # noqa: PLC0415 - as above

        shown = show(question.frame, limit=limit, form=form)
        if not reads_enough(shown):
            shown = show(self.ask(question.sql, narrowed=False).frame, limit=limit, form=form)
        with self._querying():
            return collect(shown, question.frame, limit)

    def write(self, question: Question, form: str, folder: str, *, limit: int | None = None) -> None:
        """Run a query whose tasks write the rows into a folder."""
        from maxbrod.table.results import as_written, write  # noqa: PLC0415
        from maxbrod.table.scans import asks_the_clock, reads_enough  # noqa: PLC0415 - as above

        def shown(frame: Any) -> Any:  # noqa: ANN401 - a DataFrame
            return as_written(frame if limit is None else frame.limit(limit), form)

        frame = shown(question.frame)
        # Spark plans a write again, and that plan cannot be checked before it runs. If the query uses the current time,
        # its filters may have moved by then.
        if not reads_enough(frame) or asks_the_clock(frame):
            frame = shown(self.ask(question.sql, narrowed=False).frame)
        with self._querying():
            write(frame, form, folder)

    @contextmanager
    def _querying(self) -> Iterator[None]:
        from maxbrod.work.jobs import telling_tasks  # noqa: PLC0415 - as above

        def tell(done: int, total: int) -> None:
            self._on_progress(Progress(phase="querying", tasks_done=done, tasks_total=total))

        tell(0, 0)
        with telling_tasks(self._spark, tell):
            yield


# Counts of whole tables by topic and partition come from the catalog: without Spark, in the time of opening an archive.
# Only the plainest form is understood. Everything else is left to Spark, and so are counts that the catalog does not
# know exactly.


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery:
    """`SELECT topic, partition, count(*) FROM table GROUP BY topic, partition`, or with fewer columns."""

    table: str
    columns: tuple[tuple[str, str], ...]
    """The kind of each column, `topic`, `partition` or `count`, and its name."""
    order: tuple[str, ...] = ()
    """The columns that the rows are sorted by, of the same three."""

    def table_of(self, counts: Iterable[Count]) -> pa.Table:
        """The answer."""
        by = [what for what, _ in self.columns if what != "count"]
        found: Counter[tuple[Any, ...]] = Counter()
        for known in counts:
            found[tuple(getattr(known, name) for name in by)] += known.records
        if not by:
            # Without groups there is a row even if there are no records.
            found[()] += 0
        rows = [{**dict(zip(by, group, strict=True)), "count": count} for group, count in found.items()]
        rows.sort(key=lambda row: tuple(row[what] for what in self.order or by))
        columns = [pa.array([row[what] for row in rows], _TYPES[what]) for what, _ in self.columns]
        return pa.table(columns, [name for _, name in self.columns])


def parse_count(sql: str) -> CountQuery | None:
    """None: Spark must answer it."""
    found = _QUERY.fullmatch(sql)
    items = [_ITEM.fullmatch(word.strip()) for word in found["items"].split(",")] if found else []
    columns: list[tuple[str, str]] = []
    for item in items:
        if item is None:
            return None
        what = item["what"] if item["what"] in _TYPES else "count"
        columns.append((what, item["alias"] or ("count(1)" if what == "count" else what)))
    kinds = [what for what, _ in columns]
    by = _names(found["by"] if found else None, [kind for kind in kinds if kind != "count"])
    order = _names(found["order"] if found else None, kinds)
    wanted = sorted(kind for kind in kinds if kind != "count")
    # Names that occur twice, and columns that take the name of another one, are Spark's business.
    plain = len({name.lower() for _, name in columns}) == len(columns) and len(set(kinds)) == len(kinds)
    plain = plain and not any(name.lower() in _TYPES and name != what for what, name in columns)
    ordered = set(order) <= set(wanted) or bool(found and found["order"].strip().lower() == "all")
    if found is None or kinds.count("count") != 1 or not plain or sorted(by) != wanted or not ordered:
        return None
    return CountQuery(table=found["table"].strip("`"), columns=tuple(columns), order=tuple(order))


def _names(text: str | None, every: list[str]) -> list[str]:
    """The names in a list; `ALL` means every column."""
    if text is not None and text.strip().lower() == "all":
        return every
    return [word.strip() for word in (text or "").split(",")] if text else []


def _shown(rows: pa.Table, form: str) -> pa.Table:
    """The rows in a form of `maxbrod.table.results`."""
    if form == "text":
        return rows.cast(pa.schema([(name, pa.string()) for name in rows.column_names]))
    if form == "json":
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows.to_pylist()]
        return pa.table({"json": pa.array(lines, pa.string())})
    return rows


_MISSING_VIEW: Final = re.compile(r"`(?P<name>[^`]+)` cannot be found.*TABLE_OR_VIEW_NOT_FOUND", re.DOTALL)
_HINTS: Final = {
    "TABLE_OR_VIEW_NOT_FOUND": f"there are {', '.join(RESERVED)}, and a view for each topic: 'maxbrod ls' has their "
    "names; backticks go around a name with dashes or dots",
    "INVALID_LIMIT_LIKE_EXPRESSION.DATA_TYPE": "if this is about WHERE offset IN (…): Spark takes it for its clause "
    "OFFSET; put backticks around the column, `offset`, or a table's name before it",
    "PARSE_SYNTAX_ERROR": "only queries are run, such as SELECT … or WITH … SELECT; a name with dashes or dots needs "
    "backticks around it",
}


def query(
    archive: str | Path,
    sql: str,
    *,
    layout: str | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    **options: Unpack[QueryKeywords],
) -> pa.Table:
    """Query an archive with SQL, and return the rows as an Arrow table.

    Args:
        archive: a folder or a URL, in any layout.
        sql: a query over `records`, the topics by their names, `segments`, `gaps`, `runs` and `groups`.
        layout: the archive's layout, if it cannot be detected.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open, and gets no views.
        options: the options of `maxbrod query`, such as `topics`, `since` or `value`; docs/reference has them all.

    Raises:
        UsageError: Spark does not understand the query.
        MaxbrodError: nothing could be read; `maxbrod.errors` has the kinds.
    """
    base = Config(archive=str(archive), layout=layout, storage=storage or StorageConfig())
    config = config_with(base, "query", options)
    with Query(config, config.query, session=session) as opened:
        return opened.answer(sql, limit=config.query.limit).table


def views(
    spark: Session,
    archive: str | Path,
    *,
    prefix: str = "",
    layout: str | None = None,
    storage: StorageConfig | None = None,
    **options: Unpack[ScopeKeywords],
) -> list[str]:
    """Create views of an archive's tables in a session, and return their names, each with `prefix` before it.

    A query reads all columns of `records` and all records of a topic: select few topics and a time, or use
    `maxbrod.query`. `options` are those of `maxbrod query` that select and decode.
    """
    from maxbrod.query.views import Views  # noqa: PLC0415 - pyspark
    from maxbrod.table.registration import register  # noqa: PLC0415
    from maxbrod.table.views import create_views  # noqa: PLC0415

    scope = config_with(None, "query", options).query
    check_scope(scope)
    opened = open_archive(str(archive), storage, layout=layout, records=True)
    register(spark)
    selected = select(opened, scope, layout=layout)
    found = Views(spark, opened, selected, scope).every()
    create_views(spark, found, lambda view: view.load(spark), prefix)
    return [prefix + view.name for view in found]
