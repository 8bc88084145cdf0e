"""Logins on a mount: the server's side of SASL against kafka-python's client side, TLS, and tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import json
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pydantic import SecretStr

from maxbrod.config import SaslConfig
from maxbrod.errors import AccessDeniedError, RefusedError, UsageError
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.kafka.wire.security import log_in
from maxbrod.mount import users as users_module
from maxbrod.mount.security import ANONYMOUS, Logins, LoginSession, TlsFiles, ssl_context, tls_principal
from maxbrod.mount.tokens import TokenRefusedError, TokenRules
from maxbrod.mount.users import SCRAM_DIGESTS, ScramVerifier, read_users, user_lines
from maxbrod.sandbox.security import write_certificates
from support.bearer_tokens import CLAIMS, CURVE, EDWARDS, NOW_S, RSA, STRANGER, b64, rsa_jwk, signed

PASSWORDS = {"alice": "s3cret, with = and ünicode", "bob": "another-secret"}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Door:
    """A session that is asked in bytes, as by one connection."""

    logins: Logins
    clock: Clock = field(default_factory=Clock)
    version: int = 2

    def __post_init__(self) -> None:
        self.runner = asyncio.Runner()
        self.session = LoginSession(self.logins, clock=self.clock, wall=self.clock)

    def ask(self, request: Any) -> Any:
        handshake = isinstance(request, SaslHandshakeRequest)
        version = min(self.version, 1) if handshake else self.version
        response = SaslHandshakeResponse if handshake else SaslAuthenticateResponse
        data = bytes(request.encode(version=version))
        decoded = type(request).decode(data, version=version)
        answer = self.runner.run(self.session.handle(decoded, version))
        return response.decode(bytes(answer.encode(version=version)), version=version)

    def log_in(
        self, mechanism: str, name: str = "alice", password: str | None = None, token: str | None = None
    ) -> float:
        secret = SecretStr(PASSWORDS.get(name, "none") if password is None else password)
        config = SaslConfig(
            mechanism=mechanism,  # type: ignore[arg-type]  # one of them
            username=None if token else name,
            password=None if token else secret,
            token=SecretStr(token) if token else None,
        )
        return log_in(config, "mount", self.ask)


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    path.touch(0o600)
    lines = [line for name, password in PASSWORDS.items() for line in user_lines(name, password)]
    path.write_text("# users\n\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def door(users_file: Path) -> Iterator[Door]:
    made = Door(Logins(users=read_users(users_file), delay_s=0))
    with made.runner:
        yield made


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in_by_each_mechanism(door: Door, mechanism: str, version: int) -> None:
    door.version = version
    before = door.session.is_authenticated
    assert door.log_in(mechanism) == 0
    assert (before, door.session.is_authenticated) == (False, True)
    assert door.session.principal == "User:alice"
    assert not door.session.expired()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "another-secret"), ("mallory", "x"), ("alice", "")])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    door: Door, mechanism: str, name: str, password: str
) -> None:
    with pytest.raises(AccessDeniedError, match="the login is refused"):
        door.log_in(mechanism, name, password)
    assert door.session.failed
    assert not door.session.is_authenticated
    assert door.session.principal is None


def test_an_unknown_user_gets_the_same_salt_each_time_as_a_known_one_does(door: Door) -> None:
    def first_message(name: str) -> dict[str, str]:
        door.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        answer = door.ask(SaslAuthenticateRequest(auth_bytes=f"n,,n={name},r=abc".encode()))
        return dict(part.split("=", 1) for part in bytes(answer.auth_bytes).decode().split(","))

    for name in ("alice", "mallory"):
        first, second = first_message(name), first_message(name)
        assert first["s"] == second["s"]
        assert first["i"] == second["i"] == str(users_module.ITERATIONS)
        assert first["r"] != second["r"]


def test_scram_agrees_with_the_example_of_rfc_7677() -> None:
    verifier = ScramVerifier.of(
        "pencil", "SCRAM-SHA-256", iterations=4096, salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    )
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    signed = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
    signature = hmac.digest(verifier.server_key, signed.encode(), "sha256")
    assert base64.b64encode(signature).decode() == "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert hmac.compare_digest(
        ScramVerifier.of("pencil", "SCRAM-SHA-256", salt=verifier.salt, iterations=4096).stored_key, verifier.stored_key
    )


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"n,,n=al=ice,r=x",
        b"n,,n=,r=x",
        b"n,,r=x",
        b"n,,m=x,n=alice,r=x",
    ],
)
def test_a_malformed_scram_message_is_refused(door: Door, message: bytes) -> None:
    door.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    assert door.ask(SaslAuthenticateRequest(auth_bytes=message)).error_code == Code.SASL_AUTHENTICATION_FAILED
    assert door.session.failed


@pytest.mark.parametrize("message", [b"", b"alice", b"bob\0alice\0s3cret", b"\0\0", b"\0alice\0x\0y", b"\xff\0\0"])
def test_a_malformed_plain_message_is_refused(door: Door, message: bytes) -> None:
    door.ask(SaslHandshakeRequest(mechanism="PLAIN"))
    assert door.ask(SaslAuthenticateRequest(auth_bytes=message)).error_code == Code.SASL_AUTHENTICATION_FAILED


def test_half_a_login_is_none(door: Door) -> None:
    door.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"))
    answer = door.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"))
    assert answer.error_code == 0
    assert not door.session.is_authenticated
    # A proof of the right form, by somebody who does not know the password.
    nonce = bytes(answer.auth_bytes).split(b",")[0]
    proof = base64.b64encode(bytes(64))
    answer = door.ask(SaslAuthenticateRequest(auth_bytes=b"c=biws," + nonce + b",p=" + proof))
    assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
    assert not door.session.is_authenticated


def test_a_proof_for_one_exchange_is_none_for_another(users_file: Path) -> None:
    users = read_users(users_file)
    seen: list[bytes] = []

    class Recorder(Door):
        def ask(self, request: Any) -> Any:
            if isinstance(request, SaslAuthenticateRequest):
                seen.append(bytes(request.auth_bytes))
            return super().ask(request)

    first, second = Recorder(Logins(users=users, delay_s=0)), Door(Logins(users=users, delay_s=0))
    with first.runner, second.runner:
        first.log_in("SCRAM-SHA-256")
        second.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        assert second.ask(SaslAuthenticateRequest(auth_bytes=seen[0])).error_code == 0
        answer = second.ask(SaslAuthenticateRequest(auth_bytes=seen[1]))
    assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED


def test_a_proof_with_another_nonce_or_header_is_refused_though_it_is_right(door: Door) -> None:
    """As somebody would send it who knows the password, and wants a part of an older exchange to count."""

    def finish(nonce_of: Any, bound: str) -> int:
        fresh = Door(door.logins)
        with fresh.runner:
            fresh.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
            bare = "n=bob,r=abc"
            first = bytes(fresh.ask(SaslAuthenticateRequest(auth_bytes=f"n,,{bare}".encode())).auth_bytes).decode()
            fields = dict(part.split("=", 1) for part in first.split(","))
            salted = hashlib.pbkdf2_hmac(
                "sha256", PASSWORDS["bob"].encode(), base64.b64decode(fields["s"]), int(fields["i"])
            )
            unproven = f"c={bound},r={nonce_of(fields['r'])}"
            client_key = hmac.digest(salted, b"Client Key", "sha256")
            stored_key = hashlib.sha256(client_key).digest()
            signature = hmac.digest(stored_key, f"{bare},{first},{unproven}".encode(), "sha256")
            proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
            return int(fresh.ask(SaslAuthenticateRequest(auth_bytes=f"{unproven},p={proof}".encode())).error_code)

    assert finish(lambda nonce: nonce, "biws") == 0
    assert finish(lambda nonce: nonce[:-1], "biws") == Code.SASL_AUTHENTICATION_FAILED
    assert finish(lambda nonce: nonce, "eSws") == Code.SASL_AUTHENTICATION_FAILED


def test_tokens_after_a_handshake_of_version_0_come_bare(door: Door) -> None:
    handshake = SaslHandshakeRequest(version=0, mechanism="PLAIN")
    answer = door.runner.run(door.session.handle(handshake, 0))
    assert answer.error_code == 0
    assert door.session.expects_raw
    message = f"\0alice\0{PASSWORDS['alice']}".encode()
    assert door.runner.run(door.session.handle_raw(message)) == b""
    assert door.session.principal == "User:alice"
    assert not door.session.expects_raw


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are(door: Door) -> None:
    answer = door.ask(SaslHandshakeRequest(mechanism="GSSAPI"))
    assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
    assert set(answer.mechanisms) == set(MECHANISMS)
    assert not door.session.is_authenticated


def test_authentication_without_a_handshake_is_refused(door: Door) -> None:
    assert door.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0x")).error_code == Code.ILLEGAL_SASL_STATE
    assert door.session.failed


def test_a_listener_without_sasl_says_so_and_knows_the_certificate() -> None:
    with Door(Logins()).runner as runner:
        anonymous = LoginSession(Logins())
        certified = LoginSession(Logins(), certified="User:CN=alice")
        answer = runner.run(anonymous.handle(SaslHandshakeRequest(version=1, mechanism="PLAIN"), 1))
    assert answer.error_code == Code.ILLEGAL_SASL_STATE
    assert (anonymous.is_authenticated, anonymous.principal) == (True, ANONYMOUS)
    assert certified.principal == "User:CN=alice"


def test_a_certificate_is_no_login_where_sasl_is_offered(users_file: Path) -> None:
    session = LoginSession(Logins(users=read_users(users_file)), certified="User:CN=alice")
    assert not session.is_authenticated


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_logs_in_again_on_an_open_connection(users_file: Path, mechanism: str) -> None:
    door = Door(Logins(users=read_users(users_file), lifetime_ms=60_000, delay_s=0))
    with door.runner:
        assert door.log_in(mechanism) == 60
        door.clock.now_s += 59.9
        assert not door.session.expired()
        assert door.log_in(mechanism) == 60
        door.clock.now_s += 59.9
        assert not door.session.expired()
        assert door.session.is_authenticated
        door.clock.now_s += 0.2
        assert door.session.expired()


def test_another_user_cannot_take_over_a_connection(door: Door) -> None:
    door.log_in("PLAIN")
    with pytest.raises(AccessDeniedError):
        door.log_in("PLAIN", "bob")
    assert door.session.failed
    assert door.session.principal is None


def test_a_client_logs_in_again_by_the_same_mechanism_only(door: Door) -> None:
    door.log_in("SCRAM-SHA-256")
    answer = door.ask(SaslHandshakeRequest(mechanism="PLAIN"))
    assert (answer.error_code, answer.mechanisms) == (Code.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-256"])
    assert door.session.principal == "User:alice"


def test_a_failed_login_is_answered_late(users_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def note(delay_s: float) -> None:
        waited.append(delay_s)

    door = Door(Logins(users=read_users(users_file), delay_s=0.25))
    monkeypatch.setattr(asyncio, "sleep", note)
    with door.runner:
        door.log_in("PLAIN")
        assert waited == []
        with pytest.raises(AccessDeniedError):
            door.log_in("PLAIN", password="wrong")
    assert waited == [0.25]


def test_no_log_line_or_repr_has_a_secret(door: Door, users_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AccessDeniedError):
        door.log_in("PLAIN", password="a-secret-that-is-wrong")
    keys = [part for line in users_file.read_text().splitlines()[2:] for part in line.split()[3:]]
    shown = caplog.text + repr(read_users(users_file).verifier("alice", "SCRAM-SHA-256")) + repr(door.session)
    assert "login by PLAIN failed" in caplog.text
    assert not [secret for secret in (*PASSWORDS.values(), "a-secret-that-is-wrong", *keys) if secret in shown]


def test_a_file_of_users_that_others_can_read_is_refused(users_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "users"
    copy.write_text(users_file.read_text())
    copy.chmod(0o640)
    with pytest.raises(RefusedError, match="others may read"):
        read_users(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace("SCRAM-SHA-256", "MD5"),
        lambda line: line.replace("8192", "1"),
        lambda line: line.rsplit(" ", 1)[0],
        lambda line: line[:-4],
        lambda line: line.replace("=", "!"),
    ],
)
def test_a_wrong_line_of_users_is_named_and_not_shown(tmp_path: Path, change: Any) -> None:
    line = ScramVerifier.of("secret", "SCRAM-SHA-256").line("alice")
    path = tmp_path / "users"
    path.touch(0o600)
    path.write_text(f"# first\n{change(line)}\n")
    with pytest.raises(UsageError, match="line") as caught:
        read_users(path)
    assert caught.value.object_name == f"{path}, line 2"
    assert line.split()[4] not in str(caught.value)


def test_the_lines_of_a_user_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    assert users_module.main(["carol"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["carol", name] for name in SCRAM_DIGESTS]
    assert "secret" not in "".join(lines)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert users_module.main(["carol"]) == UsageError.exit_code
    assert users_module.main([]) == UsageError.exit_code
    assert users_module.main(["two words"]) == UsageError.exit_code


# Tokens


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    point = CURVE.public_key().public_numbers()
    raw = EDWARDS.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    keys = [
        rsa_jwk(RSA, kid="rsa", use="sig"),
        {
            "kty": "EC",
            "crv": "P-256",
            "x": b64(point.x.to_bytes(32, "big")),
            "y": b64(point.y.to_bytes(32, "big")),
            "kid": "ec",
        },
        {"kty": "OKP", "crv": "Ed25519", "x": b64(raw), "kid": "ed"},
        {"kty": "oct", "k": b64(b"symmetric"), "kid": "oct"},
        {**rsa_jwk(STRANGER, kid="enc"), "use": "enc"},
    ]
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def rules(path: Path, **fields: Any) -> TokenRules:
    return TokenRules(**{"keys_file": path, "audience": "kafka", "issuer": "https://issuer", **fields})


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ({"alg": "RS256", "kid": "rsa"}, RSA),
        ({"alg": "PS256", "kid": "rsa"}, RSA),
        ({"alg": "ES256", "kid": "ec"}, CURVE),
        ({"alg": "EdDSA", "kid": "ed"}, EDWARDS),
        ({"alg": "RS256"}, RSA),
    ],
)
def test_a_signed_token_logs_its_subject_in_until_it_expires(jwks: Path, header: dict[str, Any], key: Any) -> None:
    door = Door(Logins(tokens=rules(jwks), delay_s=0))
    with door.runner:
        assert door.log_in("OAUTHBEARER", token=signed(header, CLAIMS, key)) == 300
    assert door.session.principal == "User:alice"
    door.clock.now_s += 300
    assert door.session.expired()


@pytest.mark.parametrize(
    ("why", "token"),
    {
        "another key": signed({"alg": "RS256", "kid": "rsa"}, CLAIMS, STRANGER),
        "a key of another use": signed({"alg": "RS256", "kid": "enc"}, CLAIMS, STRANGER),
        "no signature": signed({"alg": "none"}, CLAIMS),
        "no signature, in capitals": signed({"alg": "NONE"}, CLAIMS),
        "an empty signature": signed({"alg": "RS256", "kid": "rsa"}, CLAIMS),
        "a public key as a secret": signed(
            {"alg": "HS256", "kid": "rsa"},
            CLAIMS,
            RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        ),
        "a symmetric key": signed({"alg": "HS256", "kid": "oct"}, CLAIMS, b"symmetric"),
        "an algorithm of another key": signed({"alg": "ES256", "kid": "rsa"}, CLAIMS, RSA),
        "an extension": signed({"alg": "RS256", "kid": "rsa", "crit": ["x"]}, CLAIMS, RSA),
        "expired": signed({"alg": "RS256", "kid": "rsa"}, {**CLAIMS, "exp": NOW_S - 60}, RSA),
        "no expiry": signed({"alg": "RS256"}, {k: v for k, v in CLAIMS.items() if k != "exp"}, RSA),
        "an expiry that is no number": signed({"alg": "RS256"}, {**CLAIMS, "exp": "9999999999"}, RSA),
        "not yet": signed({"alg": "RS256", "kid": "rsa"}, {**CLAIMS, "nbf": NOW_S + 60}, RSA),
        "another audience": signed({"alg": "RS256", "kid": "rsa"}, {**CLAIMS, "aud": "kafka2"}, RSA),
        "no audience": signed({"alg": "RS256"}, {k: v for k, v in CLAIMS.items() if k != "aud"}, RSA),
        "another issuer": signed({"alg": "RS256", "kid": "rsa"}, {**CLAIMS, "iss": "https://evil"}, RSA),
        "nobody": signed({"alg": "RS256", "kid": "rsa"}, {**CLAIMS, "sub": ""}, RSA),
        "no JWT": "abc",
        "nothing": "",
        "too long": "a" * 70_000,
    }.items(),
)
def test_a_token_that_proves_nothing_is_refused(jwks: Path, why: str, token: str) -> None:
    with pytest.raises(TokenRefusedError):
        rules(jwks).check(token, NOW_S)


def test_a_changed_byte_of_a_token_is_noticed(jwks: Path) -> None:
    token = signed({"alg": "RS256", "kid": "rsa"}, CLAIMS, RSA)
    known = rules(jwks)
    known.check(token, NOW_S)
    for position in range(0, len(token), 7):
        other = "B" if token[position] == "A" else "A"
        changed = token[:position] + other + token[position + 1 :]
        if (
            base64.urlsafe_b64decode(changed.split(".")[2] + "==")
            == base64.urlsafe_b64decode(token.split(".")[2] + "==")
            and changed.rsplit(".", 1)[0] == token.rsplit(".", 1)[0]
        ):
            continue
        with pytest.raises(TokenRefusedError):
            known.check(changed, NOW_S)


def test_keys_that_the_issuer_replaces_are_read_again(jwks: Path) -> None:
    known = rules(jwks)
    token = signed({"alg": "RS256", "kid": "new"}, CLAIMS, STRANGER)
    with pytest.raises(TokenRefusedError):
        known.check(token, NOW_S)
    jwks.write_text(json.dumps({"keys": [rsa_jwk(STRANGER, kid="new")]}))
    assert known.check(token, NOW_S).principal == "alice"
    jwks.write_text("{half")
    assert known.check(token, NOW_S).principal == "alice"


def test_unsecured_tokens_need_to_be_allowed() -> None:
    token = signed({"alg": "none"}, CLAIMS)
    assert TokenRules(keys_file=None, audience=None, unsecured=True).check(token, NOW_S).principal == "alice"
    with pytest.raises(UsageError):
        TokenRules(keys_file=None, audience="kafka")


def test_tokens_must_be_for_this_service(jwks: Path) -> None:
    with pytest.raises(UsageError, match="audience"):
        rules(jwks, audience=None)


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [rsa_jwk(rsa.generate_private_key(65537, 1024))]}))
    with pytest.raises(UsageError, match="1024 bits"):
        rules(path)


def test_a_token_that_was_renewed_prolongs_the_connection_of_the_same_user_alone(jwks: Path) -> None:
    door = Door(Logins(tokens=rules(jwks), delay_s=0))
    header = {"alg": "RS256", "kid": "rsa"}
    with door.runner:
        door.log_in("OAUTHBEARER", token=signed(header, CLAIMS, RSA))
        assert door.log_in("OAUTHBEARER", token=signed(header, {**CLAIMS, "exp": NOW_S + 600}, RSA)) == 600
        with pytest.raises(AccessDeniedError):
            door.log_in("OAUTHBEARER", token=signed(header, {**CLAIMS, "sub": "bob"}, RSA))


# TLS


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any] | None:
    """The certificate of the client as the server sees it. Raises what either side raised."""
    left, right = socket.socketpair()
    errors: list[BaseException] = []

    def connect() -> None:
        try:
            with client.wrap_socket(right, server_hostname="localhost") as stream:
                stream.recv(1)
        except (OSError, ssl.SSLError) as error:
            errors.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        with server.wrap_socket(left, server_side=True) as stream:
            stream.send(b"x")
            return stream.getpeercert()
    finally:
        left.close()
        thread.join()


def test_mutual_tls_names_the_client_and_refuses_one_without_a_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    write_certificates(folder, ["alice"])
    certificate = folder / "server.pem"
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    known = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    known.load_cert_chain(folder / "user-alice.pem")
    for context in (trusting, known):
        context.check_hostname = False
    mutual = ssl_context(TlsFiles(certificate=certificate, client_ca=folder / "ca.pem"))
    assert tls_principal(handshake(mutual, known)) == "User:CN=alice"
    with pytest.raises(ssl.SSLError):
        handshake(mutual, trusting)
    assert tls_principal(handshake(ssl_context(TlsFiles(certificate=certificate)), trusting)) is None


def test_the_subject_of_a_certificate_is_written_as_kafka_does() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "alice"),))
    assert tls_principal({"subject": subject}) == "User:CN=alice,O=A\\, B,C=DE"


def test_a_key_that_others_can_read_and_a_file_that_is_no_pem_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    write_certificates(folder, [])
    (folder / "server.pem").chmod(0o644)
    with pytest.raises(RefusedError):
        ssl_context(TlsFiles(certificate=folder / "server.pem"))
    other = tmp_path / "other"
    other.touch(0o600)
    with pytest.raises(UsageError, match="not usable PEM"):
        ssl_context(TlsFiles(certificate=other))
    with pytest.raises(UsageError, match="No such file"):
        ssl_context(TlsFiles(certificate=tmp_path / "none"))
