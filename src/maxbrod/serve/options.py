"""The options of `maxbrod serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Seconds, Words
from maxbrod.options import BEHAVIOR, Options, option

LISTENER: Final = "Listener"


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    archives: Words = option(
        "Archives to show, in any layout. That of the configuration file by default.",
        default=(),
        metavar="ARCHIVE",
        argument=True,
    )
    listen: str = option(
        "The address and port to listen on. Port 0: any that is free. Anything but loopback needs a token and TLS.",
        LISTENER,
        "ADDRESS:PORT",
        default="127.0.0.1:8321",
    )
    names: Words = option(
        "Also answer requests for this host name, such as that of a proxy. Addresses, localhost and the name of this "
        "machine are answered anyway. May be repeated.",
        LISTENER,
        "HOST",
        ("--name",),
        default=(),
    )
    tls_cert: Path | None = option("Encrypt connections with this certificate and its chain, as PEM.", LISTENER, "FILE")
    tls_key: Path | None = option("The key of the certificate, if the file has none.", LISTENER, "FILE")
    token: bool = option(
        "Let in only who has the token. Without it, every user of this machine can read the archives.",
        LISTENER,
        default=True,
    )
    token_file: Path | None = option(
        "The token, at least 16 characters, in a file that only its owner may read. By default a new one is made at "
        "each start, and printed once.",
        LISTENER,
        "FILE",
    )
    every: Seconds = option("How often to look for news of the archives.", BEHAVIOR, "TIME", default=30.0)
