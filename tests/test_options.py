"""One declaration for every option: flags, file, Python, reference and schema follow from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml
from rich.text import Text
from typer.main import get_command

import maxbrod.keywords
from maxbrod.cli import main
from maxbrod.cli.commands import Call, call_of, command
from maxbrod.cli.main import run
from maxbrod.config import Config, config_with, load_config
from maxbrod.errors import UsageError
from maxbrod.option_values import parse_seconds
from maxbrod.options import Declared, LogOptions, Options, StorageOptions, declared
from maxbrod.query import cli as query_cli
from maxbrod_reference.__main__ import generated
from maxbrod_reference.options import json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
SECTIONS = {name: type(each.default) for name, each in Config.model_fields.items() if isinstance(each.default, Options)}
OPTIONS = [(section, each) for section, model in SECTIONS.items() for each in declared(model)]
GENERATED = generated()
COMMAND_LINE_ONLY = {
    "archive_word",
    "topic_flag",
    "config",
    "command_config",
    "json",
    "quiet",
    "help",
    "words",
    "report",
}
SHARED = {
    "archive",
    "layout",
    "bootstrap",
    "patience",
    "engine",
    "master",
    "s3_endpoint",
    "s3_region",
    "s3_path_style",
    "archive_key",
    "signing_key",
    "create_only",
    "lock",
    "lock_mode",
} | {each.name for each in declared(LogOptions)}

# Two values of each kind: for the file, and for the flag that overrides it.
WORDS = {
    "storage_class_after": ({"30d": "GLACIER"}, "1d=STANDARD_IA", {"1d": "STANDARD_IA"}),
    "start": ("latest", ["orders:0:5", "orders:1:6"], {"orders": {0: 5, 1: 6}}),
    "segment_bytes": ("1MiB", "2MiB", 2 << 20),
    "topic_bytes": ("1MiB", "2MiB", 2 << 20),
    "archive_bytes": ("1MiB", "2MiB", 2 << 20),
    "keep_within": ("1d", "2d", 172800.0),
    "roll_bytes": ("1MiB", "2MiB", 2 << 20),
    "commit_bytes": ("1MiB", "2MiB", 2 << 20),
    "min_segment_size": ("1MiB", "2MiB", 2 << 20),
    "max_segment_size": ("1MiB", "2MiB", 2 << 20),
    "per_topic": ({"orders": {"min_level": 1}}, None, None),
    "rate_bytes_per_s": ("1MB", "2MB/s", 2_000_000),
    "every": ("3m", "2m", 120.0),
    "roll_age": ("1h", "2h", 7200.0),
    "partitions": ([1, 2], "3", "3"),
    "partition_count": ({"orders": 3}, ["4"], ("4",)),
    "partition_counts": ({"orders": 3}, None, None),
    "configs": ({"retention.ms": 5}, ["retention.ms=6"], {"retention.ms": "6"}),
    "layout_options": ({"region": "eu"}, ["region=us"], {"region": "us"}),
    "from_storage": ({"s3.region": "eu"}, ["s3.region=us"], {"s3.region": "us"}),
    "to_storage": ({"s3.region": "eu"}, ["s3.region=us"], {"s3.region": "us"}),
    "from_options": ({"region": "eu"}, ["region=us"], {"region": "us"}),
    "generation_role": ("active", "passive", "passive"),
    "codec": ("gzip", "zstd", "zstd"),
    "schema_registry": ("http://one:8081", "https://two/", "https://two"),
    "delivery": ("at-least-once", "exactly-once", "exactly-once"),
    "events_retention": ("5d", "6d", 518400.0),
    "takeover": ("7m", "6m", 360.0),
}
NEEDS = {
    "roll_bytes": {"roll_age": "1h"},
    "roll_records": {"roll_age": "1h"},
    "queue": {"events_topic": "events"},
}
"""What an option is refused without."""


def values(each: Declared) -> tuple[Any, Any, Any]:
    """In the file, on the command line, and what the latter means."""
    if each.name in WORDS:
        return WORDS[each.name]
    if each.type is bool:
        return (not each.default), each.default, each.default
    if each.type is int:
        return 7, "8", 8
    if each.reads is not None and each.reads.parse is parse_seconds:
        return "5m", "6m", 360.0
    if each.repeated:
        path = "Path" in str(each.type)
        return ["one"], ["two"], (Path("two"),) if path else ("two",)
    return "one", "two", Path("two") if each.type is Path else "two"


def arguments(each: Declared, value: Any) -> list[str]:
    if each.option.argument:
        before = ["source"] if each.name == "target" else []
        return before + (value if isinstance(value, list) else [value])
    if each.type is bool:
        return [each.flags[0] if value else f"--no-{each.flags[0].removeprefix('--')}"]
    return [word for one in (value if isinstance(value, list) else [value]) for word in (each.flags[0], one)]


def verbs(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or get_command(main.command_line())
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, (*path, name))


def section_of(path: tuple[str, ...]) -> str:
    """Verbs of one group share a section, but trees of another tool have their own. `copy` is a method of models."""
    if path[0] == "copy":
        return "copies"
    return path[-1].replace("-", "_") if path[-1].endswith("-tree") else path[0]


# The --config of `maxbrod sandbox` sets options of brokers, and first steps are nothing to repeat from a file.
WITHOUT_SECTION = {("sandbox",), ("init",), ("doctor",), ("config",)}
CONFIGURED = [
    (path, each)
    for path, each in verbs()
    if any(one.name == "config" for one in each.params) and path[:1] not in WITHOUT_SECTION
]


@pytest.mark.parametrize(("path", "verb"), CONFIGURED, ids=[" ".join(path) for path, _ in CONFIGURED])
def test_everything_that_flags_say_the_file_says(path: tuple[str, ...], verb: Any) -> None:
    known = {each.name for each in declared(SECTIONS[section_of(path)])} | SHARED | COMMAND_LINE_ONLY
    assert {each.name.removeprefix("no_") for each in verb.params} <= known


def test_help_shows_every_word_of_an_option() -> None:
    texts = [each.help for _, verb in verbs() for each in verb.params if getattr(each, "help", None)]
    assert [text for text in texts if Text.from_markup(text).plain != text] == [], "rich takes [word] for a style"


def test_every_verb_that_reads_a_file_has_a_section_and_every_section_a_verb() -> None:
    assert {section_of(path) for path, _ in CONFIGURED} == set(SECTIONS)


@pytest.mark.parametrize(("section", "option"), OPTIONS, ids=[f"{section}.{each.name}" for section, each in OPTIONS])
def test_a_flag_beats_the_file_and_the_file_beats_the_default(
    section: str, option: Declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # --metrics-file writes there
    in_file, on_command_line, meant = values(option)
    extra = NEEDS.get(option.name, {})
    file = tmp_path / "maxbrod.yaml"
    file.write_text(yaml.safe_dump({section: {option.name: in_file, **extra}}))
    calls: list[Call[Any]] = []

    def keep(call: Call[Any]) -> None:
        calls.append(call)

    def run_verb(*words: str) -> Any:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(command(section, SECTIONS[section], after=(StorageOptions,))(keep))
        app(args=list(words), standalone_mode=False)
        return getattr(calls[-1].options, option.name)

    assert run_verb() == option.default
    of_file = run_verb("--config", str(file))
    assert of_file == getattr(getattr(load_config(file), section), option.name)
    assert of_file != option.default
    if on_command_line is not None and (option.flags or option.option.argument):
        assert run_verb("--config", str(file), *arguments(option, on_command_line)) == meant
        assert getattr(getattr(calls[-1].config, section), option.name) == meant


def test_what_verbs_share_is_overridden_by_flags_as_well(tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text(
        "archive: /one\nlayout: kbs\npatience: 3m\nspark: {master: 'local[3]'}\n"
        "kafka: {bootstrap: 'one:1', security_protocol: SSL}\nstorage: {s3: {endpoint: 'http://one', region: one}}\n"
    )
    shared = call_of("ls", [], {"config": file}).config
    assert (shared.archive, shared.layout, shared.patience, shared.spark.master) == ("/one", "kbs", 180.0, "local[3]")
    flags = {"archive": "/two", "layout": "kafka", "patience": "4m", "master": "local[4]", "bootstrap": "two:2"}
    shared = call_of("ls", [], {"config": file, **flags, "s3_region": "two"}).config
    assert (shared.archive, shared.layout, shared.patience, shared.spark.master) == ("/two", "kafka", 240.0, "local[4]")
    assert shared.kafka is not None
    assert (shared.kafka.bootstrap, shared.kafka.security_protocol) == ("two:2", "SSL")
    assert (shared.storage.s3.endpoint, shared.storage.s3.region) == ("http://one", "two")


def test_patience_is_still_read_from_the_section_of_backup(tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text("backup: {patience: 3m}")
    assert load_config(file).patience == 180.0
    file.write_text("patience: 1m\nbackup: {patience: 3m}")
    assert load_config(file).patience == 60.0, "the new place wins"


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], "SELECT 1"),
        (["SELECT 2"], "SELECT 2"),
        (["/two", "SELECT 2"], "SELECT 2"),
        (["--histogram"], None),
        (["--file", "query.sql"], "SELECT 3"),
    ],
)
def test_a_query_on_the_command_line_overrides_that_of_the_file(
    words: list[str], query: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("maxbrod.yaml").write_text("archive: /one\nquery: {sql: SELECT 1, topics: orders}")
    Path("query.sql").write_text("SELECT 3")
    asked: list[Any] = []
    monkeypatch.setattr(query_cli, "_run", lambda *arguments, **_: asked.extend(arguments))
    assert run(["query", "-c", "maxbrod.yaml", *words]) == 0
    config, scope, text, _ = asked
    assert (config.archive, scope.topics, text) == ("/two" if "/two" in words else "/one", ("orders",), query)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_mistyped_key_is_refused_with_the_nearest_one(section: str, tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    for each in declared(SECTIONS[section]):
        wrong = f"{each.name}x"
        file.write_text(yaml.safe_dump({section: {wrong: "hunter2"}}))
        with pytest.raises(UsageError) as caught:
            load_config(file)
        assert f"{section}.{wrong}: unknown; did you mean {each.name}?" in str(caught.value)
        assert caught.value.object_name == str(file)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bakup: {}", "bakup: unknown; did you mean backup?"),
        ("backup: {topic: orders}", "backup.topic: unknown; did you mean topics?"),
        ("backup: {segment-bytes: 5}", "did you mean segment_bytes?"),
        ("storage: {s3: {endpont: x}}", "storage.s3.endpont: unknown; did you mean endpoint?"),
        ("kafka: {bootstrap: 'x:1', tls: {zzz: 1}}", "kafka.tls.zzz: unknown; known are ca_file"),
        ("restore: {topics: {orders: 1}}", "restore.topics: "),
    ],
)
def test_a_mistyped_key_is_found_anywhere(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        load_config(file)


def test_a_mistyped_flag_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "--topik", "orders"]) == 2
    assert "--topic" in capsys.readouterr().err


def test_a_mistyped_keyword_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="restore has no option topix; did you mean topics"):
        maxbrod.restore(archive="/nowhere", bootstrap="127.0.0.1:1", topix="orders")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="did you mean compression"):
        maxbrod.backup(archive="/nowhere", bootstrap="127.0.0.1:1", compresion="zstd")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="did you mean ignore"):
        maxbrod.compare(archive="/nowhere", bootstrap="127.0.0.1:1", ignored="key")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="did you mean since"):
        maxbrod.query("/nowhere", "SELECT 1", sinse="0")  # type: ignore[call-arg]


@pytest.mark.parametrize("verb", ["backup", "restore", "compare", "query"])
def test_the_keywords_of_functions_are_the_declared_options(verb: str) -> None:
    typed = getattr(maxbrod.keywords, f"{verb.capitalize()}Keywords")
    shared = set() if verb == "query" else {"layout", "patience"}
    assert set(typed.__annotations__) == {each.name for each in declared(SECTIONS[verb]) if each.option.python} | shared
    assert not typed.__required_keys__
    function = getattr(maxbrod, verb)
    assert "Any" not in str(function.__annotations__["options"])


def test_a_program_does_not_do_what_its_file_says_not_to(tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text("restore: {dry_run: true}")
    with pytest.raises(UsageError, match="dry_run of the configuration is for the command line only"):
        maxbrod.restore(archive=tmp_path, bootstrap="127.0.0.1:1", config=file)
    file.write_text("restore: {strict: true, since: 2026-01-31T12:00:00Z, yes: true}")
    config = config_with(file, "restore", {"strict": False, "topics": "orders"})
    assert (config.restore.strict, config.restore.topics) == (False, ("orders",))
    assert config.restore.since == "2026-01-31T12:00:00+00:00"


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_is_current(name: str) -> None:
    assert (ROOT / name).read_text() == GENERATED[name], "run 'make reference'"


def test_the_reference_names_every_flag_and_every_key() -> None:
    flags = (ROOT / "docs/reference/cli.md").read_text()
    keys = (ROOT / "docs/reference/configuration.md").read_text()
    for section, each in OPTIONS:
        assert all(f"`{flag}`" in flags for flag in each.flags), each.name
        assert f"| `{each.name}` |" in keys.partition(f"\n## {section}\n")[2].partition("\n## ")[0]


# The schema. A validator of the few words that it uses: a library for it would be needed here only.


def mistakes(value: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    if "$ref" in schema:
        return mistakes(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if "anyOf" in schema and all(mistakes(value, {**each}, at) for each in schema["anyOf"]):
        return [f"{at}: none of {len(schema['anyOf'])}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: not one of {schema['enum']}"]
    kinds = schema.get("type", [])
    if kinds and not any(is_of(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return [f"{at}: not {kinds}"]
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        return [f"{at}: too small"]
    if isinstance(value, list):
        return [each for one in value for each in mistakes(one, schema.get("items", {}), at)]
    return object_mistakes(value, schema, at) if isinstance(value, dict) else []


def object_mistakes(value: dict[Any, Any], schema: dict[str, Any], at: str) -> list[str]:
    found = [f"{at}: lacks {name}" for name in schema.get("required", []) if name not in value]
    for name, each in value.items():
        patterns = schema.get("patternProperties", {})
        rest = schema.get("additionalProperties", True)
        part = schema.get("properties", {}).get(name) or next(
            (one for pattern, one in patterns.items() if re.search(pattern, str(name))), rest
        )
        if part is False:
            found.append(f"{at}.{name}: unknown")
        elif part is not True:
            found += mistakes(each, part, f"{at}.{name}")
    return found


def is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds = {"string": str, "integer": int, "number": int | float, "array": list, "object": dict, "null": type(None)}
    return kind != "boolean" and isinstance(value, kinds[kind])


SCHEMA = json_schema()


def yaml_examples() -> list[tuple[str, str]]:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    blocks = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(page.name, found) for page in pages for found in blocks.findall(page.read_text())]


@pytest.mark.parametrize(("page", "text"), yaml_examples(), ids=[page for page, _ in yaml_examples()])
def test_the_examples_of_the_documents_are_valid(page: str, text: str, tmp_path: Path) -> None:
    assert mistakes(yaml.safe_load(text), SCHEMA) == []
    file = tmp_path / "maxbrod.yaml"
    file.write_text(text)
    load_config(file, dict.fromkeys(re.findall(r"\$\{(\w+)", text), "secret"))


def test_the_schema_takes_a_file_with_every_option(tmp_path: Path) -> None:
    document: dict[str, Any] = {section: {} for section in SECTIONS}
    for section, each in OPTIONS:
        document[section][each.name] = values(each)[0]
    document |= {"archive": "/a", "layout": "kafka", "patience": "2m", "spark": {"master": "local[1]"}}
    document["kafka"] = {"bootstrap": "x:1", "tls": {"ca_file": "ca.pem"}}
    assert mistakes(document, SCHEMA) == []
    file = tmp_path / "maxbrod.yaml"
    file.write_text(yaml.safe_dump(document))
    assert load_config(file).restore.configs == {"retention.ms": "5"}


@pytest.mark.parametrize(
    "text",
    [
        "restore: {topix: orders}",
        "backup: {follow: often}",
        "backup: {segment_records: 0}",
        "kafka: {security_protocol: SSL}",
        "storage: {s3: {storage_class: CHEAP}}",
    ],
)
def test_the_schema_refuses_what_the_command_refuses(text: str, tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text(text)
    with pytest.raises(UsageError):
        load_config(file)
    assert mistakes(yaml.safe_load(text), SCHEMA) != []


def test_the_schema_is_json_and_says_what_each_option_means() -> None:
    document = json.loads((ROOT / "docs/reference/maxbrod.schema.json").read_text())
    for section, each in OPTIONS:
        found = document["$defs"][SECTIONS[section].__name__]["properties"][each.name]
        assert found["description"] == each.option.help
