"""Translates the properties of Kafka's Java clients (`security.protocol`, `sasl.jaas.config`, …) and reads their files.

The result is the `kafka` section of a configuration. A property that would have no effect is refused by name. No error
shows a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from maxbrod.errors import UsageError

_OPERATION: Final = "read client properties"
_KNOWN: Final = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.client.callback.handler.class",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
    "software.amazon.msk.auth.iam.IAMLoginModule": ("AWS_MSK_IAM",),
}
_OF_TOKENS: Final = frozenset(name for name in _KNOWN if "callback" in name or "oauthbearer" in name)
_PASSWORDS: Final = re.compile(r"username|password")
_ALLOWED: Final = {
    "OAUTHBEARER": re.compile(r"clientId|clientSecret|scope|extension_\w+"),
    # The profile and the role of IAM are those of the process: they cannot be set for one connection.
    "AWS_MSK_IAM": re.compile(r"(?!)"),
}
_JAAS: Final = re.compile(
    r"\s*(?P<module>[\w.]+)\s+(?:required|requisite|sufficient|optional)(?P<options>.*?)\s*;\s*", re.DOTALL
)
_OPTION: Final = re.compile(
    r"""\s+(?P<name>\w+)\s*=\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"';]+))""", re.DOTALL
)

_LINE: Final = re.compile(r"(?P<name>(?:[^\\\s:=]|\\.)+)[ \t\f]*[:=]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u(?P<unicode>[0-9A-Fa-f]{4})|(?P<letter>.))", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_properties(path: Path) -> dict[str, str]:
    """Read a file as `java.util.Properties` does: with comments, escapes and continuation lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"the client properties cannot be read: {reason}", object_name=str(path)) from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    found = (_LINE.fullmatch(line) for line in _logical_lines(text))
    return {_unescape(match["name"]): _unescape(match["value"]) for match in found if match is not None}


def _logical_lines(text: str) -> Iterator[str]:
    whole = ""
    for line in re.split(r"\r\n|\n|\r", text):
        part = line.lstrip(" \t\f")
        if not whole and part.startswith(("#", "!")):
            continue
        # An odd number of backslashes at the end: the last one continues the line.
        if (len(part) - len(part.rstrip("\\"))) % 2:
            whole += part[:-1]
            continue
        yield whole + part
        whole = ""
    yield whole


def _unescape(text: str) -> str:
    def replacement(found: re.Match[str]) -> str:
        if found["unicode"] is not None:
            return chr(int(found["unicode"], 16))
        return _LETTERS.get(found["letter"], found["letter"])

    return _ESCAPE.sub(replacement, text)


def translate(properties: Mapping[str, str]) -> dict[str, Any]:
    """The same connection in our configuration. UsageError names a property that is wrong or not supported."""
    for name in sorted(set(properties) - _KNOWN):
        raise refused(name, "is not supported")
    if "bootstrap.servers" not in properties:
        raise refused("bootstrap.servers", "is missing")
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        location = name.replace(".type", ".location")
        # Java's default is JKS, which only Java can read.
        if location in properties and properties.get(name, "JKS").upper() != "PEM":
            raise refused(name, "must be PEM", hint="export the store to PEM files with keytool and openssl")
    return {
        "bootstrap": properties["bootstrap.servers"],
        "security_protocol": properties.get("security.protocol", "PLAINTEXT").upper(),
        "tls": _tls(properties),
        "sasl": _sasl(properties),
    }


def property_of(setting: str) -> str:
    """The property that a setting came from."""
    return {
        "security_protocol": "security.protocol",
        "sasl.mechanism": "sasl.mechanism",
        "sasl": "sasl.jaas.config",
    }.get(setting, setting)


def _tls(properties: Mapping[str, str]) -> dict[str, Any]:
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in {"", "https"}:
        raise refused("ssl.endpoint.identification.algorithm", "is neither https nor empty")
    store = properties.get("ssl.keystore.location")
    return {
        "ca_file": properties.get("ssl.truststore.location"),
        # Kafka's PEM store is one file that holds the key and its certificates.
        "certificate_file": store,
        "key_file": store,
        "key_password": properties.get("ssl.key.password"),
        "check_hostname": algorithm == "https",
    }


def _sasl(properties: Mapping[str, str]) -> dict[str, Any] | None:
    if not properties.get("security.protocol", "").upper().startswith("SASL"):
        return None
    mechanism = properties.get("sasl.mechanism")
    if mechanism is None:
        raise refused("sasl.mechanism", "is missing", hint="Java's default, GSSAPI, is not supported")
    for name in sorted(_OF_TOKENS & set(properties)):
        if mechanism not in _ALLOWED:
            raise refused(name, f"has no effect with {mechanism}")
    if mechanism not in {module for fitting in _MODULES.values() for module in fitting}:
        raise refused("sasl.mechanism", "is not one that is supported")
    found = _JAAS.fullmatch(properties.get("sasl.jaas.config", ""))
    if found is None:
        raise refused("sasl.jaas.config", "is missing, or is not one login module that ends with a semicolon")
    if mechanism not in _MODULES.get(found["module"], ()):
        raise refused("sasl.jaas.config", "names a login module that does not fit sasl.mechanism")
    options = _options(found["options"], _ALLOWED.get(mechanism, _PASSWORDS))
    if mechanism == "OAUTHBEARER":
        return _bearer(properties, options)
    if mechanism == "AWS_MSK_IAM":
        return {"mechanism": mechanism}
    return {"mechanism": mechanism, "username": options.get("username"), "password": options.get("password")}


def _bearer(properties: Mapping[str, str], options: Mapping[str, str]) -> dict[str, Any]:
    """Client credentials: Kafka 4.1 has them as properties, earlier clients inside of the login module."""
    endpoint = properties.get("sasl.oauthbearer.token.endpoint.url")
    if endpoint is None:
        raise refused(
            "sasl.oauthbearer.token.endpoint.url", "is missing", hint="or give kafka.sasl.token in the YAML file"
        )
    credentials = "sasl.oauthbearer.client.credentials.client."
    start = "extension_"
    return {
        "mechanism": "OAUTHBEARER",
        "token_endpoint": endpoint,
        "client_id": options.get("clientId", properties.get(f"{credentials}id")),
        "client_secret": options.get("clientSecret", properties.get(f"{credentials}secret")),
        "scope": options.get("scope", properties.get("sasl.oauthbearer.scope")),
        "extensions": {name.removeprefix(start): value for name, value in options.items() if name.startswith(start)},
    }


def _options(text: str, allowed: re.Pattern[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _OPTION.match(text, position)
        if found is None:
            raise refused("sasl.jaas.config", "has an option that cannot be read")
        if not allowed.fullmatch(found["name"]):
            raise refused("sasl.jaas.config", f"has the option {found['name']}, which is not supported")
        value = found["single"] if found["single"] is not None else found["bare"]
        options[found["name"]] = (
            value if value is not None else re.sub(r"\\(.)", r"\1", found["double"], flags=re.DOTALL)
        )
        position = found.end()
    return options


def refused(name: str, what: str, *, hint: str | None = None) -> UsageError:
    return UsageError(f"the client property {name} {what}", operation=_OPERATION, object_name=name, hint=hint)
