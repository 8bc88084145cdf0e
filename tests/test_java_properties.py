"""Properties of Kafka's own clients mean the same here, or are refused by name."""

from __future__ import annotations

import pytest

from maxbrod.config import from_java_properties
from maxbrod.errors import UsageError

SECRET = "hush-hush"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {
    "bootstrap.servers": "a:1,b:2",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{PLAIN} required username="u" password="{SECRET}";',
}


def test_every_supported_property_arrives() -> None:
    config = from_java_properties(
        {
            **SASL,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/me.pem",
            "ssl.key.password": SECRET,
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert (config.bootstrap, config.security_protocol) == ("a:1,b:2", "SASL_SSL")
    assert (str(config.tls.ca_file), str(config.tls.certificate_file)) == ("/ca.pem", "/me.pem")
    assert config.tls.key_file == config.tls.certificate_file
    assert config.tls.key_password is not None
    assert not config.tls.check_hostname
    assert config.sasl is not None
    assert config.sasl.password is not None
    assert (config.sasl.mechanism, config.sasl.username) == ("PLAIN", "u")
    assert config.sasl.password.get_secret_value() == SECRET
    assert SECRET not in repr(config)


def test_without_more_than_an_address_it_is_plaintext() -> None:
    config = from_java_properties({"bootstrap.servers": "a:1"})
    assert (config.security_protocol, config.sasl, config.tls.check_hostname) == ("PLAINTEXT", None, True)


@pytest.mark.parametrize(
    ("options", "password"),
    [
        (r'username="u" password="a\"b\\c;d"', 'a"b\\c;d'),
        ("password='it''s' username=u".replace("''", ""), "its"),
        ("username=u password=bare", "bare"),
        ('username = "u"\n password = "over lines"', "over lines"),
        ('username="u" password=""', ""),
    ],
)
def test_a_login_line_is_read_as_java_reads_it(options: str, password: str) -> None:
    config = from_java_properties(
        {**SASL, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": f"{SCRAM} required {options} ;"}
    )
    assert config.sasl is not None
    assert config.sasl.password is not None
    assert config.sasl.password.get_secret_value() == password
    assert config.sasl.username == "u"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ssl.truststore.password": SECRET}, "ssl.truststore.password"),
        ({"ssl.truststore.certificates": SECRET}, "ssl.truststore.certificates"),
        ({"client.dns.lookup": SECRET}, "client.dns.lookup"),
        ({"ssl.truststore.location": SECRET}, "ssl.truststore.type"),
        ({"ssl.keystore.location": SECRET, "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type"),
        ({"ssl.endpoint.identification.algorithm": SECRET}, "ssl.endpoint.identification.algorithm"),
        ({"security.protocol": SECRET}, "security.protocol"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.jaas.config"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "sasl.jaas.config"),
        ({"sasl.jaas.config": SECRET}, "sasl.jaas.config"),
        ({"sasl.jaas.config": f'{PLAIN} required username="u" password="{SECRET}"'}, "sasl.jaas.config"),
        ({"sasl.jaas.config": f'{PLAIN} required username="u" password="{SECRET};'}, "sasl.jaas.config"),
        ({"sasl.jaas.config": f'{PLAIN} required user="{SECRET}";'}, "sasl.jaas.config"),
        ({"sasl.jaas.config": f'{PLAIN} required password="{SECRET}";'}, "sasl.jaas.config"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_and_shows_no_value(change: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_java_properties({**SASL, **change})
    assert caught.value.object_name == named
    assert SECRET not in repr(caught.value.as_dict())
    assert caught.value.__context__ is None or SECRET not in str(caught.value.__context__)


@pytest.mark.parametrize("missing", ["bootstrap.servers", "sasl.mechanism", "sasl.jaas.config"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_java_properties({name: value for name, value in SASL.items() if name != missing})
    assert caught.value.object_name == missing
