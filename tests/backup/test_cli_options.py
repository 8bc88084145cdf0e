"""Flags over the file, and mistakes in either: no cluster is needed to tell them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.commands import call_of
from maxbrod.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2"

PROPERTIES = f"""
security.protocol = SASL_PLAINTEXT
sasl.mechanism: PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="alice" \\
    password="{SECRET}";
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    file = tmp_path / "client.properties"
    file.write_text(PROPERTIES)
    return file


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--segment-bytes", "lots"], "--segment-bytes"),
        (["--segment-records", "0"], "--segment-records"),
        (["--patience", "soon"], "--patience"),
        (["--every", "-1s"], "--every"),
        (["--compression", "brotli"], "brotli"),
        (["--compression", "zstd:99"], "99"),
        (["--start", "yesterday"], "yesterday"),
        (["--start", "2026-01-01T00:00:00"], "zone"),
        (["--start", "orders:0:1", "--start", "latest"], "latest"),
        (["--topic", "/(/"], "/(/"),
        (["--roll-bytes", "1MiB", "--follow"], "--roll-age"),
        (["--metrics-port", "70000"], "--metrics-port"),
        (["--metrics-file", "/nonexistent/x/m.prom"], "m.prom"),
        (["--rate", "fast"], "--rate"),
        (["--bootstrap", "host:port"], "host:port"),
    ],
)
def test_a_wrong_flag_is_named_and_nothing_is_touched(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    assert run(["backup", "--archive", str(archive), "--bootstrap", "localhost:1", "--patience", "1s", *arguments]) == 2
    assert named in capsys.readouterr().err
    assert not archive.exists()


@pytest.mark.parametrize(
    ("arguments", "named"), [(["--archive", "/nowhere"], "--bootstrap"), (["--bootstrap", "x:1"], "--archive")]
)
def test_what_is_missing_is_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backup", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_security_comes_from_the_properties_of_kafkas_own_tools(properties: Path) -> None:
    config = call_of("backup", [], {"bootstrap": "broker:9093", "command_config": properties}).config
    assert config.kafka is not None
    assert (config.kafka.bootstrap, config.kafka.security_protocol) == ("broker:9093", "SASL_PLAINTEXT")
    assert config.kafka.sasl is not None
    assert config.kafka.sasl.password is not None
    assert config.kafka.sasl.password.get_secret_value() == SECRET


@pytest.mark.parametrize("broken", ["sasl.mechanism=GSSAPI", "no.such.property=1", "security.protocol=hunter2"])
def test_no_error_about_properties_shows_a_secret(
    properties: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    properties.write_text(f"{PROPERTIES}\n{broken}\n")
    assert run(["backup", "--bootstrap", "x:1", "--archive", "/nowhere", "--command-config", str(properties)]) == 2
    told = capsys.readouterr().err
    assert broken.partition("=")[0] in told
    assert SECRET not in told


def test_properties_that_cannot_be_read_are_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.properties"
    assert run(["backup", "--bootstrap", "x:1", "--archive", "/nowhere", "--command-config", str(missing)]) == 2
    assert "missing.properties" in capsys.readouterr().err


def test_offsets_to_start_at_are_gathered_by_topic() -> None:
    start = ["orders:0:5", "orders:3:7", "clicks:0:1"]
    assert call_of("backup", ["start"], {"start": start}).options.start == {"orders": {0: 5, 3: 7}, "clicks": {0: 1}}


def test_no_flag_takes_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backup", "--help"]) == 0
    told = capsys.readouterr().out.lower()
    for word in ("--password", "--token", "--secret", "--access-key"):
        assert word not in told


def test_importing_the_package_and_asking_for_help_loads_nothing_large() -> None:
    code = (
        "import sys, maxbrod\nassert 'backup' in dir(maxbrod)\n"
        "from maxbrod.cli.main import run\nrun(['backup', '-h'])\n"
        "sys.exit(bool({'pyspark', 'kafka', 'pyarrow', 'deltalake', 'numba'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
