"""`maxbrod config`, and where a configuration file is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from maxbrod.cli import commands
from maxbrod.cli.commands import call_of
from maxbrod.cli.main import run
from maxbrod.config import find_config
from maxbrod.errors import EXIT_REFUSED, RefusedError


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any configuration, in a folder of their own."""
    monkeypatch.delenv("MAXBROD_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[object, str]]:
    assert run(["config", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {setting["name"]: (setting["value"], setting["source"]) for setting in document["settings"]}


def test_the_flag_beats_the_variable_beats_this_folder_beats_the_users_folder(at_home: Path) -> None:
    own = at_home.parent / "home" / "maxbrod" / "maxbrod.yaml"
    environ = {"XDG_CONFIG_HOME": str(at_home.parent / "home")}
    assert find_config(None, environ) is None
    own.parent.mkdir(parents=True)
    own.write_text("archive: /own")
    assert find_config(None, environ) == ("the user's folder", own)
    Path("maxbrod.yaml").write_text("archive: /here")
    assert find_config(None, environ) == ("this folder", Path("maxbrod.yaml"))
    named = {**environ, "MAXBROD_CONFIG": "/elsewhere.yaml"}
    assert find_config(None, named) == ("MAXBROD_CONFIG", Path("/elsewhere.yaml"))
    assert find_config(Path("flag.yaml"), named) == ("--config", Path("flag.yaml"))
    assert find_config(None, {**environ, "MAXBROD_CONFIG": ""}) is None, "empty: none at all"


def test_a_file_that_others_can_write_is_not_taken_unless_it_is_named(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = at_home / "maxbrod.yaml"
    file.write_text("archive: /theirs")
    file.chmod(0o666)
    with pytest.raises(RefusedError, match="not named but found"):
        find_config(None, {})
    assert run(["ls"]) == EXIT_REFUSED
    assert "--config maxbrod.yaml" in capsys.readouterr().err
    assert shown(capsys, "--config", "maxbrod.yaml")["archive"][0] == "/theirs"


def test_each_setting_says_where_it_comes_from(
    at_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (at_home / "maxbrod.yaml").write_text(
        "archive: /file\npatience: 30s\nkafka: {bootstrap: 'a:1', security_protocol: SASL_SSL, "
        "sasl: {mechanism: PLAIN, username: me, password: '${WORD}'}}\nbackup: {exclude: [tmp-*]}\n"
    )
    monkeypatch.setenv("WORD", "secret")
    found = shown(capsys, "--bootstrap", "b:2")
    assert found["archive"] == ("/file", "maxbrod.yaml")
    assert found["patience"] == (30.0, "maxbrod.yaml")
    assert found["kafka.bootstrap"] == ("b:2", "--bootstrap")
    assert found["kafka.sasl.password"] == ("********", "maxbrod.yaml, WORD")
    assert found["backup.exclude"] == (["tmp-*"], "maxbrod.yaml")
    assert "backup.follow" not in found, "only what is set"
    monkeypatch.setenv("MAXBROD_ARCHIVE", "/variable")
    assert shown(capsys)["archive"] == ("/variable", "MAXBROD_ARCHIVE")
    assert shown(capsys, "--archive", "/flag")["archive"] == ("/flag", "--archive")
    assert shown(capsys, "--all")["backup.follow"] == (False, "default")


def test_no_secret_is_shown(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at_home / "maxbrod.yaml").write_text(
        "storage: {s3: {access_key_id: visible-id, secret_access_key: visible-key}}\n"
        "kafka: {bootstrap.servers: 'a:1', security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.jaas.config: "
        '\'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="visible-word";\'}'
    )
    for arguments in ([], ["--all"], ["--json"]):
        assert run(["config", *arguments]) == 0
        printed = capsys.readouterr()
        assert "visible" not in printed.out + printed.err
        assert "********" in printed.out


@pytest.mark.parametrize("word", ["{archive}", "{archive}/", "file://{archive}"])
def test_an_archive_may_be_named_as_a_word(at_home: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    archive = at_home / "backups"
    archive.mkdir()
    for verb in (["ls"], ["show"], ["check"], ["state"]):
        assert run([*verb, word.format(archive=archive), "orders"]) == 2
        assert "there is no archive" in capsys.readouterr().err, "an empty folder: it was taken for the archive"
    assert run(["ls", "/orders-.*/"]) == 2
    assert "no archive is named" in capsys.readouterr().err, "an expression is not an archive"


VERBS = [
    *(["gc"], ["compact"], ["repair"], ["hold", "list"], ["hold", "add", "--topic", "x", "--why", "y"]),
    *(["groups", "plan"], ["restore"], ["compare"], ["replicate", "status"]),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.usefixtures("at_home")
def test_every_verb_with_an_archive_takes_it_as_a_word(
    verb: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str | None] = []

    def called(*arguments: object, **options: object) -> NoReturn:
        call = call_of(*arguments, **options)  # type: ignore[arg-type] # as it was called
        seen.append(call.config.archive)
        raise RefusedError("seen")

    monkeypatch.setattr(commands, "call_of", called)
    run([*verb, "s3://backups/kafka"])
    assert seen == ["s3://backups/kafka"]
    capsys.readouterr()
    assert run([*verb, "s3://backups/kafka", "--archive", "s3://backups/other"]) == 2
    assert "two archives are named" in capsys.readouterr().err


@pytest.mark.usefixtures("at_home")
def test_a_word_that_is_no_archive_may_be_meant_for_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "orders"]) == 2
    assert "name a topic with --topic orders; see 'maxbrod restore --help'" in capsys.readouterr().err


def test_settings_are_shown_as_people_write_them_and_to_programs_as_numbers(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (at_home / "maxbrod.yaml").write_text(
        "patience: 2h\nbackup: {every: 90s, segment_bytes: 64MiB, follow: true, topics: [a, b]}\n"
    )
    assert run(["config"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    values = {line[0]: line[1] for line in lines if (line and "." in line[0]) or line[:1] == ["patience"]}
    assert values["patience"] == "2h"
    assert (values["backup.every"], values["backup.segment_bytes"], values["backup.follow"]) == ("90s", "64MiB", "true")
    assert shown(capsys)["backup.segment_bytes"][0] == 64 << 20


def test_one_word_too_many_is_named(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(at_home), "orders", "clicks"]) == 2
    assert "'clicks' is one word too many" in capsys.readouterr().err


def test_looking_soon_gives_up_a_store_unless_somebody_says_how_long(at_home: Path) -> None:
    def waits_s(**given: object) -> float:
        return call_of("ls", [], given, looking=True).config.storage.deadline_s

    assert waits_s() == 10
    assert waits_s(patience="45s") == 45
    assert call_of("backup", [], {}).config.storage.deadline_s == 180, "a backup is patient"
    assert call_of("backup", [], {"patience": "30s"}).config.storage.deadline_s == 30
    (at_home / "maxbrod.yaml").write_text("storage: {deadline_s: 60}")
    assert waits_s() == 60
    assert waits_s(patience="5s") == 5
