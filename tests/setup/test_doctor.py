"""`maxbrod doctor` says what is missing and how to get it, and `maxbrod init` writes a file that works."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.config import load_config
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED
from maxbrod.sandbox.jars import run_tool
from maxbrod.sandbox.spec import CLIENTS_DIR
from maxbrod.sandbox.topics import create_topic
from maxbrod.storage.beneath import Root
from maxbrod.storage.failures import translate_os
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    code = run(["doctor", *arguments, "--json"])
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(finding["name"], []).append(finding)
    return code, found


def states(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["state"] for finding in findings]


def test_what_is_not_named_is_not_called_good(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = examine(capsys)
    assert code == EXIT_DONE
    assert states(found["cluster"]) == states(found["archive"]) == ["WARN"]


def test_a_broker_that_does_not_answer_fails_and_hides_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap", "127.0.0.1:1", "--patience", "1s", "--archive", str(tmp_path)]
    code, found = examine(capsys, *where)
    assert code == EXIT_FAILED
    assert states(found["cluster"]) == ["FAILED"]
    assert "127.0.0.1:1" in found["cluster"][0]["text"]
    assert found["cluster"][0]["hint"]
    assert states(found["storage"]) == ["OK"]
    assert "the first backup creates it" in found["archive"][0]["text"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left behind"


def test_a_store_that_ignores_conditional_puts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "put", LocalStorage.replace)
    code, found = examine(capsys, "--archive", str(tmp_path))
    assert code == EXIT_REFUSED
    assert states(found["storage"]) == ["OK", "FAILED"]
    assert "--single-writer" in found["storage"][1]["hint"]


def test_a_clock_that_is_wrong_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.setup.doctor.now_ms", lambda: 0)
    code, found = examine(capsys, "--archive", str(tmp_path))
    assert code == EXIT_FAILED
    assert "ahead of this machine's" in found["clock"][0]["text"]


def test_an_unknown_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--for", "dance"]) == 2
    assert "--for dance" in capsys.readouterr().err


def test_everything_is_good_on_a_cluster_without_acls(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    where = ["--bootstrap", cluster.bootstrap, "--archive", str(tmp_path), "--topic", topic]
    code, found = examine(capsys, *where, "--for", "backup", "--for", "restore")
    assert code == EXIT_DONE
    assert "1 broker" in found["cluster"][0]["text"]
    assert states(found["rights for backup"]) == states(found["rights for restore"]) == ["OK"]
    code, found = examine(capsys, "--bootstrap", cluster.bootstrap, "--topic", "no-such-topic-*")
    assert states(found["rights for backup"]) == ["WARN"], "on no topic, nothing was tried"


def allow(fenced: Cluster, user: str, operation: str, *resource: str) -> None:
    words = ["--add", "--allow-principal", f"User:{user}", "--operation", operation, *resource]
    run_tool("org.apache.kafka.tools.AclCommand", "--bootstrap-server", fenced.bootstrap, *words)


def test_missing_rights_are_named_with_the_command_that_grants_them(
    fenced: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(fenced, topic)
    properties = fenced.directory / CLIENTS_DIR / "sasl_plaintext-dave.properties"
    where = ["--bootstrap", fenced.bootstrap_for("SASL_PLAINTEXT"), "--command-config", str(properties)]
    code, found = examine(capsys, *where)
    rights = found["rights for backup"]
    assert "OK" not in states(rights)
    hints = [finding["hint"] or "" for finding in rights]
    for granted in ("Describe --cluster", "DescribeConfigs --cluster", "Describe --group '*'"):
        assert any(hint.endswith(f"--operation {granted}") for hint in hints), granted
    assert code == EXIT_DONE, "what nobody can see, nobody can judge: warnings"
    # A topic that the user sees and may not read is no longer a matter of doubt.
    allow(fenced, "dave", "Describe", "--topic", topic)
    code, found = examine(capsys, *where, "--topic", topic)
    assert code == EXIT_REFUSED
    assert [finding["hint"] for finding in found["rights for backup"] if finding["state"] == "FAILED"] == [
        f"kafka-acls.sh … --add --allow-principal User:NAME --operation Read --topic {topic}"
    ]
    allow(fenced, "dave", "Read", "--topic", topic)
    code, found = examine(capsys, *where, "--topic", topic, "--for", "backup", "--for", "restore")
    assert "FAILED" not in states(found["rights for backup"])
    lacking = " ".join(finding["text"] for finding in found["rights for restore"] if finding["state"] == "FAILED")
    assert (code, "Write" in lacking, "AlterConfigs" in lacking) == (EXIT_REFUSED, True, True)


def test_a_mistyped_topic_gets_a_suggestion_and_a_lost_one_can_be_restored(
    cluster: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    wrong = topic[:-1]
    code, found = examine(capsys, "--bootstrap", cluster.bootstrap, "--topic", wrong, "--for", "restore")
    assert code == EXIT_DONE
    assert f"did you mean {topic}" in found["topics"][0]["hint"]
    assert states(found["rights for restore"]) == ["OK"], "brokers tell the rights on a topic that is gone"


def test_a_store_that_may_only_be_read_fails_a_backup_and_not_a_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(storage: LocalStorage, path: str, _data: object) -> None:
        raise translate_os(OSError(errno.EROFS, "Read-only file system"), "put", storage.name_of(path))

    (tmp_path / "object").write_bytes(b"there")
    monkeypatch.setattr(LocalStorage, "put", refuse)
    code, found = examine(capsys, "--archive", str(tmp_path))
    assert code == EXIT_FAILED
    assert states(found["storage"]) == ["FAILED", "OK"]
    assert "nothing can be created" in found["storage"][0]["text"]
    assert "may list and read in" in found["storage"][1]["text"]
    code, found = examine(capsys, "--archive", str(tmp_path), "--for", "query")
    assert states(found["storage"]) == ["OK"], "a query writes nothing"


def test_a_full_disk_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(storage: LocalStorage, path: str, _data: object) -> None:
        raise translate_os(OSError(errno.ENOSPC, "No space left on device"), "put", storage.name_of(path))

    monkeypatch.setattr(LocalStorage, "put", refuse)
    monkeypatch.setattr("maxbrod.setup.doctor.free_bytes", lambda _: 1000)
    code, found = examine(capsys, "--archive", str(tmp_path))
    assert code == EXIT_FAILED
    assert "the disk is full" in found["storage"][0]["text"]
    assert found["storage"][0]["hint"] == "make room, then try again"
    assert "WARN" in states(found["room"])


def test_a_key_that_may_not_delete_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_root: Root, _name: str) -> None:
        raise OSError(errno.EACCES, "denied")

    monkeypatch.setattr(Root, "remove_file", refuse)
    code, found = examine(capsys, "--archive", str(tmp_path))
    assert code == EXIT_DONE
    assert states(found["storage"]) == ["WARN", "OK"]
    assert "may list, create and read in" in found["storage"][1]["text"]


@pytest.mark.parametrize(
    ("server", "lock", "code", "says"),
    [
        ("locking_s3", None, 0, "keeps no older versions"),
        ("versioned_s3", None, 0, "keeps older versions; Object Lock is on, and locks nothing by itself"),
        ("versioned_s3", "30d", 0, "backups lock theirs for 30 d"),
        ("s3", None, 0, "has no Object Lock"),
        ("s3", "30d", 5, "has no Object Lock"),
    ],
)
def test_what_a_bucket_keeps_and_locks_is_told(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    server: str,
    lock: str | None,
    code: int,
    says: str,
) -> None:
    store = request.getfixturevalue(server)
    file = tmp_path / "maxbrod.yaml"
    section = {**store.storage_section(), **({} if lock is None else {"lock": lock})}
    file.write_text(json.dumps({"archive": f"{store.url}/archive", "storage": section}))
    file.chmod(0o600)
    found, findings = examine(capsys, "-c", str(file))
    assert says in findings["lock"][0]["text"]
    assert found == code


def test_init_writes_a_private_file_that_every_verb_can_read(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = ["--bootstrap", cluster.bootstrap, "--archive", "backups", "--topic", "orders-*", "--keep", "90d"]
    assert run(["init", *answers, "--every", "5m", "--yes"]) == EXIT_DONE
    assert "maxbrod backup --follow" in capsys.readouterr().out
    file = tmp_path / "maxbrod.yaml"
    assert file.stat().st_mode & 0o077 == 0
    config = load_config(file, {})
    # Commands may run in another folder than the one in which the file was written.
    assert config.archive == str(tmp_path / "backups")
    assert (config.backup.topics, config.backup.every) == (("orders-*",), 300.0)
    assert config.prune.older_than == "90d"
    assert run(["init", *answers, "--yes"]) == EXIT_REFUSED, "it exists"
    assert "--force" in capsys.readouterr().err


def test_init_writes_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="visible-word";\n'
    )
    file = tmp_path / "maxbrod.yaml"
    where = ["--bootstrap", "127.0.0.1:1", "--command-config", str(properties), "--archive", str(tmp_path / "a")]
    assert run(["init", str(file), *where, "--yes", "--patience", "1s"]) == EXIT_FAILED, "nobody answers"
    printed = capsys.readouterr()
    assert "visible" not in file.read_text() + printed.out + printed.err
    config = load_config(file, {"KAFKA_PASSWORD": "word"})
    assert config.kafka is not None
    assert config.kafka.sasl is not None
    assert (config.kafka.sasl.username, config.kafka.sasl.mechanism) == ("me", "SCRAM-SHA-512")


def test_init_without_a_terminal_asks_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "maxbrod.yaml")]) == 2
    assert "--bootstrap is missing, and there is no terminal to ask on" in capsys.readouterr().err
    assert not (tmp_path / "maxbrod.yaml").exists()


def test_init_asks_again_until_it_understands_and_keeps_what_a_store_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "maxbrod.yaml"
    words = iter(["nonsense", "127.0.0.1:1", "orders-[", "orders-* clicks", "soon", "5m", "90", "90d"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(words))
    where = ["--archive", str(tmp_path / "archive"), "--s3-endpoint", "http://127.0.0.1:2", "--s3-region", "eu-1"]
    assert run(["init", str(file), *where, "--patience", "1s"]) == EXIT_FAILED, "nobody answers"
    printed = capsys.readouterr().out
    assert next(words, None) is None, "every question was asked, and asked again"
    for complaint in ("'nonsense' is not of the form host:port", "'soon' is not a time", "'90' is not a time"):
        assert complaint in printed
    assert f"maxbrod doctor -c {file}" in printed
    config = load_config(file, {})
    assert (config.backup.topics, config.backup.every, config.prune.older_than) == (("orders-*", "clicks"), 300, "90d")
    assert (config.storage.s3.endpoint, config.storage.s3.region) == ("http://127.0.0.1:2", "eu-1")


def test_init_refuses_before_it_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text("{}")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: pytest.fail("a question in vain"))
    assert run(["init", str(file)]) == EXIT_REFUSED
    assert "--force" in capsys.readouterr().err
