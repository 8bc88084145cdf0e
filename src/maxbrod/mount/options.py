"""The options of `maxbrod mount`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Bytes, Renames, Seconds, Words
from maxbrod.options import BEHAVIOR, SELECTION, AsOf, Exclude, MetricsOptions, Topics, Until, option

LISTENER: Final = "Listener"
MEMORY: Final = "Memory"


@dataclass(frozen=True, kw_only=True)
class MountOptions(MetricsOptions):
    archives: Words = option(
        "Archives to mount, in any layout. That of the configuration file by default.",
        default=(),
        metavar="ARCHIVE",
        argument=True,
    )
    topics: Topics = ()
    exclude: Exclude = ()
    as_of: AsOf = None
    until: Until = None
    rename: Renames = option(
        "Serve a topic under another name: old=new, or /regular expression for the whole name/replacement/. May be "
        "repeated.",
        SELECTION,
        "OLD=NEW",
        default=(),
    )
    prefix: str = option("Prefix of all topics that --rename does not list.", SELECTION, "TEXT", default="")
    listen: str = option(
        "The IPv4 address and port to listen on. Port 0: any that is free. Anything but loopback needs TLS or SASL.",
        LISTENER,
        "ADDRESS:PORT",
        default="127.0.0.1:9092",
    )
    advertise: str | None = option(
        "The IPv4 address that clients get in answers, if it differs from that of --listen.", LISTENER, "ADDRESS"
    )
    tls_cert: Path | None = option("Encrypt connections with this certificate and its chain, as PEM.", LISTENER, "FILE")
    tls_key: Path | None = option("The key of the certificate, if the file has none.", LISTENER, "FILE")
    tls_client_ca: Path | None = option(
        "Accept only clients with a certificate that this authority signed.", LISTENER, "FILE"
    )
    users: Path | None = option(
        "Let these users log in, by SCRAM-SHA-256, SCRAM-SHA-512 or, over TLS, PLAIN. "
        "'python -m maxbrod.mount.users NAME' prints lines of the file.",
        LISTENER,
        "FILE",
    )
    token_keys: Path | None = option(
        "Let whoever has a token log in (OAUTHBEARER): the public keys of its issuer, as JWKS or PEM.", LISTENER, "FILE"
    )
    token_audience: str | None = option("The audience that tokens must have.", LISTENER, "NAME")
    token_issuer: str | None = option("The issuer that tokens must have.", LISTENER, "NAME")
    login_lifetime: Seconds = option(
        "How long a login lasts until the client must repeat it on the same connection. 0: for ever.",
        LISTENER,
        "TIME",
        default=0.0,
    )
    connections_max: int = option(
        "Refuse connections beyond this number.", LISTENER, "N", ("--connections",), default=4096, low=1
    )
    processes: int = option(
        "Serve with so many processes, each a node with its share of the partitions. They listen on the port of "
        "--listen and on those after it, and share --cache-bytes.",
        LISTENER,
        "N",
        default=1,
        low=1,
        high=64,
    )
    state: Path | None = option(
        "Keep the commits of consumer groups in this folder. In the user's state folder by default.",
        BEHAVIOR,
        "FOLDER",
    )
    follow: bool = option(
        "Move on to newer versions of the archives. Without it, clients see the archives as they were.",
        BEHAVIOR,
        default=False,
    )
    every: Seconds = option("With --follow: how often to look for a newer version.", BEHAVIOR, "TIME", default=10.0)
    warm: Words = option(
        "Load the beginning of these topics before the first client asks: names, globs or /regular expressions/. May "
        "be repeated.",
        MEMORY,
        "PATTERN",
        default=(),
    )
    topic_ids: bool = option(
        "Give topics ids. Without ids, clients fetch by name, and a consumer that moves on to a restored cluster takes "
        "a topic there for the same one.",
        BEHAVIOR,
        default=False,
    )
    cache_bytes: Bytes = option(
        "Keep up to about this many bytes of records in memory.", MEMORY, "SIZE", default=512 << 20, low=1
    )
