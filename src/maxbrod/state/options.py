"""The options of `maxbrod state`."""

from dataclasses import dataclass

from maxbrod.options import OUTPUT, Options, TopicWords, option


@dataclass(frozen=True, kw_only=True)
class StateOptions(Options):
    topics: TopicWords = ()
    as_of: str | None = option("Show the state that this run captured. By default the newest one.", metavar="RUN")
    against: str | None = option("Show only what has changed since this run.", metavar="RUN")
    form: str | None = option(
        "Print topics, users and ACLs as resources of Strimzi (YAML) or Terraform (JSON), without secrets.",
        OUTPUT,
        "strimzi|terraform",
        ("--as",),
    )
    cluster_name: str = option("The cluster that resources of Strimzi belong to.", OUTPUT, "NAME", default="my-cluster")
