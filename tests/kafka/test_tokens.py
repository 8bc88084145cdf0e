from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr, ValidationError

from maxbrod.config import KafkaConfig, SaslConfig, from_java_properties
from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, MaxbrodError, UnavailableError, UsageError
from maxbrod.kafka.wire import security
from support.clocks import set_time
from support.token_endpoint import serving_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cr/t:+"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    security.forget_tokens()
    yield
    security.forget_tokens()


def config_for(url: str, **more: str) -> SaslConfig:
    return SaslConfig.model_validate(
        {"mechanism": "OAUTHBEARER", "token_endpoint": url, "client_id": "me", "client_secret": SECRET, **more}
    )


def test_a_token_is_asked_for_once_until_it_is_about_to_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    set_time(monkeypatch, "maxbrod.kafka.wire.security", monotonic=lambda: now[0])
    with serving_tokens(lambda: (200, {"access_token": f"t{now[0]:.0f}", "expires_in": 100})) as endpoint:
        config = config_for(endpoint.url, scope="kafka read")
        assert [security.token_of(config), security.token_of(config)] == ["t1000", "t1000"]
        now[0] += 79
        assert security.token_of(config) == "t1000"
        now[0] += 2
        assert security.token_of(config) == "t1081"
    form, client = endpoint.asked[0]
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert client == "me:s3cr%2Ft%3A%2B"
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize(
    ("status", "answer", "kind", "said"),
    [
        (401, {"error": "invalid_client", "error_description": SECRET}, AccessDeniedError, "401 (invalid_client)"),
        (400, {"error": SECRET}, AccessDeniedError, "answered 400"),
        (503, b"busy", UnavailableError, "answered 503"),
        (200, b"<html>", UsageError, "without an access_token"),
        (200, {"access_token": ""}, UsageError, "without an access_token"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_named_and_no_secret_is_shown(
    status: int, answer: object, kind: type[MaxbrodError], said: str
) -> None:
    with serving_tokens(lambda: (status, answer)) as endpoint, pytest.raises(kind) as caught:
        security.token_of(config_for(endpoint.url))
    assert said in caught.value.message
    assert caught.value.object_name == endpoint.url
    assert SECRET not in json.dumps(caught.value.as_dict())


def test_an_endpoint_that_does_not_answer_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"does not answer.*127\.0\.0\.1:1") as caught:
        security.token_of(config_for("http://127.0.0.1:1/token"))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token_endpoint": "http://tokens.example/x"}, "https://"),
        ({"token_endpoint": "file:///etc/passwd"}, "https://"),
        ({"client_secret": None}, "client_id and client_secret"),
        ({"token": "t"}, "OAUTHBEARER needs token"),
        ({"token_endpoint": None, "client_id": None, "client_secret": None}, "OAUTHBEARER needs token"),
    ],
)
def test_an_incomplete_or_unsafe_log_in_is_refused(change: dict[str, str | None], said: str) -> None:
    whole = {"mechanism": "OAUTHBEARER", "token_endpoint": "https://t/x", "client_id": "me", "client_secret": "s"}
    SaslConfig.model_validate(whole)
    with pytest.raises(ValidationError, match=said):
        SaslConfig.model_validate({**whole, **change})


def test_the_client_properties_of_java_say_the_same() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    options = f'clientId="me" clientSecret="{SECRET}" scope="kafka" extension_logicalCluster="lkc-1"'
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://t/x",
        "sasl.jaas.config": f"{module} {options};",
    }
    sasl = from_java_properties(properties).sasl
    assert sasl == config_for("https://t/x", scope="kafka").model_copy(
        update={"extensions": {"logicalCluster": "lkc-1"}}
    )
    newer = {
        **properties,
        "sasl.jaas.config": f"{module};",
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "sasl.oauthbearer.scope": "kafka",
    }
    assert from_java_properties(newer).sasl == config_for("https://t/x", scope="kafka")


def test_iam_signs_with_the_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="region"):
        security.msk_message("b-1.example", None)
    with pytest.raises(EnvironmentMissingError, match="AWS_ACCESS_KEY_ID"):
        security.msk_message("b-1.example", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    message = json.loads(security.msk_message("b-1.example", "eu-west-1"))
    assert (message["host"], message["action"]) == ("b-1.example", "kafka-cluster:Connect")
    assert message["x-amz-credential"].startswith("AKIA/")
    assert "/eu-west-1/kafka-cluster/" in message["x-amz-credential"]
    assert SECRET not in json.dumps(message)


def test_iam_is_refused_without_tls() -> None:
    with pytest.raises(ValidationError, match="AWS_MSK_IAM needs SASL_SSL"):
        KafkaConfig(bootstrap="h:1", security_protocol="SASL_PLAINTEXT", sasl=SaslConfig(mechanism="AWS_MSK_IAM"))
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }
    assert from_java_properties(properties).sasl == SaslConfig(mechanism="AWS_MSK_IAM")


def test_a_callback_handler_is_refused_where_it_would_have_no_effect() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} username="u" password="p";',
        "sasl.login.callback.handler.class": "com.example.Handler",
    }
    with pytest.raises(UsageError, match=r"sasl\.login\.callback\.handler\.class"):
        from_java_properties(properties)


def test_no_repr_shows_the_secret_of_the_client() -> None:
    config = SaslConfig(
        mechanism="OAUTHBEARER", token_endpoint="https://t", client_id="me", client_secret=SecretStr(SECRET)
    )
    assert SECRET not in repr(config)
