"""What delta-rs calls the settings of a store. The only place that knows these names; values are never printed."""

from __future__ import annotations


def s3_options(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    path_style: bool = False,
) -> dict[str, str]:
    """Storage options for an `s3://` archive. What is not given is taken from the environment, as AWS's tools do.

    Commits depend on conditional puts; a store that ignores them (see docs/format.md) is safe for one writer only.
    """
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_ACCESS_KEY_ID": access_key_id,
        "AWS_SECRET_ACCESS_KEY": secret_access_key,
        "AWS_SESSION_TOKEN": session_token,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if path_style else "true",
        "AWS_ALLOW_HTTP": "true" if endpoint is not None and endpoint.startswith("http://") else "false",
        "AWS_CONDITIONAL_PUT": "etag",
    }
    return {name: value for name, value in settings.items() if value is not None}
