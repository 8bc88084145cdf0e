from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.config import Config, load_config
from maxbrod.errors import EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t: {with} #yaml ${in} it"

FULL = """
kafka:
  bootstrap: ${HOST:-localhost}:9092
  security_protocol: SASL_SSL
  tls: {ca_file: ca.pem, key_password: "${PASSWORD}"}
  sasl:
    mechanism: SCRAM-SHA-512
    username: alice
    password: ${PASSWORD}
spark:
  master: local[2]
  conf: {spark.cost: "5$$"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "maxbrod.yaml"


def complaint(file: Path, text: str, **environ: str) -> str:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(file, environ)
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.object_name == str(file)
    return str(caught.value)


def test_variables_and_defaults_are_filled_in(file: Path) -> None:
    file.write_text(FULL)
    config = load_config(file, {"PASSWORD": SECRET})

    assert config.kafka is not None
    assert config.kafka.bootstrap == "localhost:9092"
    assert config.kafka.sasl is not None
    assert config.kafka.sasl.password is not None
    assert config.kafka.sasl.password.get_secret_value() == SECRET
    assert config.spark.conf == {"spark.cost": "5$"}


def test_no_secret_is_ever_shown(file: Path) -> None:
    file.write_text(FULL)
    config = load_config(file, {"PASSWORD": SECRET})

    assert SECRET not in repr(config) + str(config) + config.model_dump_json()


def test_an_empty_file_is_all_defaults(file: Path) -> None:
    file.write_text("")

    assert load_config(file, {}) == Config()
    assert Config().spark.master == "local[*]"


def test_a_missing_variable_is_named_with_the_way_out(file: Path) -> None:
    file.write_text(FULL)
    with pytest.raises(UsageError, match="environment variable PASSWORD, which is not set") as caught:
        load_config(file, {})
    assert caught.value.hint is not None
    assert "${PASSWORD:-" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "kafka: {bootstrap: h:1, sercurity_protocol: SSL}",
            "kafka.sercurity_protocol: unknown; did you mean security_protocol?",
        ),
        ("kafka: {}", "kafka.bootstrap: Field required"),
        ("kafka: {bootstrap: h:1, security_protocol: TLS}", "kafka.security_protocol"),
        ("kafka: {bootstrap: h:1, security_protocol: SASL_SSL}", "SASL_SSL needs a sasl section"),
        ("kafka: {bootstrap: h:1, sasl: {mechanism: PLAIN, username: u}}", "PLAIN needs username and password"),
        ("kafka: {bootstrap: h:1, sasl: {mechanism: OAUTHBEARER}}", "OAUTHBEARER needs token"),
        ("kafka: {bootstrap: h:1, tls: {key_file: k}}", "key_file needs certificate_file"),
        ("[1, 2]", "the file: "),
    ],
)
def test_a_mistake_is_named_by_its_setting(file: Path, text: str, said: str) -> None:
    assert said in complaint(file, text)


@pytest.mark.parametrize(
    ("text", "where"), [("kafka:\n  boot", "kafka"), ("backup: yes", "backup"), ("storage:\n  s3: x", "storage.s3")]
)
def test_a_section_that_was_cut_is_named_and_no_class_is(file: Path, text: str, where: str) -> None:
    said = complaint(file, text)
    assert f"{where}: this is a section, in which lines such as 'name: value' are expected" in said
    assert "instance of" not in said


def test_a_wrong_value_is_not_repeated(file: Path) -> None:
    said = complaint(file, "kafka: {bootstrap: h:1, sasl: {mechanism: PLAIN, username: u, password: [hunter2]}}")

    assert "kafka.sasl.password" in said
    assert "hunter2" not in said


def test_a_yaml_error_gives_its_place_and_not_its_text(file: Path) -> None:
    said = complaint(file, "kafka:\n  password: 'hunter2\n")

    assert "line" in said
    assert "hunter2" not in said


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_config(tmp_path / "none.yaml", {})
