"""`maxbrod state`: topics, groups, rules and settings of a cluster, as a run captured them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import typer
import yaml

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_line, table
from maxbrod.cli.verbs import load, looking
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, JsonOption, LookOptions
from maxbrod.state.options import StateOptions
from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.state.resources import Resources
    from maxbrod.state.verb import StateReport

_STRIMZI: Final = "strimzi"
_FORMS: Final = (_STRIMZI, "terraform")


@command("state", StateOptions, after=(*PLACE, LookOptions, JsonOption))
def state(call: Call[StateOptions]) -> None:
    """Show the cluster as a backup captured it: topics, groups, ACLs, quotas, users, settings, levels of features.

    What the user of the backup could not read is listed, with the right that it lacked. With --against, only what has
    changed since another run. With --as, the same as files for Git: resources of Strimzi or Terraform. They contain no
    secrets, because Kafka does not reveal any.

    For example:

      maxbrod state -a /backups/kafka

      maxbrod state -a s3://backups/kafka --against 20260801T0300

      maxbrod state -a /backups/kafka --as strimzi --cluster-name prod > kafka-resources.yaml
    """
    options = call.options
    if options.form not in (None, *_FORMS):
        raise UsageError(f"--as {options.form} is unknown", hint=f"choose {' or '.join(_FORMS)}")
    if options.form is not None and (options.against is not None or call.as_json):
        other = "--json" if call.as_json else "--against"
        raise UsageError(f"--as and {other} exclude each other", hint="compare the files of two runs with diff")
    open_archive, storage = load("archive.archive:open_archive"), call.config.storage
    with looking(call):
        opened: Archive = open_archive(call.archive, storage, layout=call.config.layout)
    if options.form is not None:
        _print_resources(call, opened)
        return
    show_state = load("state.verb:show_state")
    with looking(call):
        report: StateReport = show_state(opened, options.topics, as_of=options.as_of, against=options.against)
    if call.as_json:
        print_json(report.as_dict())
    elif report.changes is not None:
        _print_changes(report)
    else:
        _print_state(report)
    raise typer.Exit(report.exit_code)


def _print_resources(call: Call[StateOptions], archive: Archive) -> None:
    options = call.options
    found, _ = load("state.verb:state_at")(archive, options.topics, options.as_of)
    resources: Resources
    if options.form == _STRIMZI:
        resources = load("state.resources:strimzi_resources")(found, options.cluster_name)
        text = yaml.safe_dump_all(resources.documents, sort_keys=False, allow_unicode=True)
    else:
        resources = load("state.resources:terraform_resources")(found)
        text = json.dumps(resources.documents[0], indent=2, ensure_ascii=False) + "\n"
    typer.echo(text, nl=False)
    for line in resources.left_out:
        typer.echo(f"left out: {line}", err=True)


def _print_changes(report: StateReport) -> None:
    print_line(f"{report.archive}: run {report.run_id} against run {report.against}")
    shown = table("Changes", "what", "*name", "change", "*before", "*after")
    for change in report.changes or ():
        shown.add_row(change.what, change.name, change.change, _words(change.before), _words(change.after))
    if report.changes:
        out.print(shown)
    print_line(counted(len(report.changes or ()), "change"))


def _print_state(report: StateReport) -> None:
    found = report.state
    print_line(f"{report.archive} as captured by run {report.run_id}, {human_time(found['taken_at_ms'])}")
    print_line(f"cluster {found['cluster_id'] or 'unknown'}, {counted(len(found['brokers']), 'broker')}")
    topics = table("Topics", "*topic", ">parts", ">replicas", "*configuration")
    for topic in found["topics"]:
        values = "unknown" if topic["configs"] is None else _words(topic["configs"])
        topics.add_row(topic["name"], f"{topic['partition_count']:,}", f"{topic['replication_factor']}", values)
    out.print(topics)
    kinds = Counter(group["type"] for group in found["groups"])
    print_line(f"groups: {', '.join(f'{count:,} {kind}' for kind, count in sorted(kinds.items())) or 'none'}")
    for group in found["groups"]:
        if group["topology"]:
            print_line(f"  {group['group_id']}: {'; '.join(map(_subtopology, group['topology']))}")
    _print_list("ACLs", found["acls"], lambda acl: " ".join(acl.values()))
    _print_list("quotas", found["quotas"], lambda quota: f"{_entities(quota)}: {_words(quota['values'])}")
    _print_list("SCRAM users", found["users"], lambda user: f"{user['name']} ({user['mechanism']})")
    if found["tokens"]:
        _print_list("delegation tokens", found["tokens"], lambda token: f"{token['token_id']} of {token['owner']}")
    _print_list("settings", found["settings"], _settings)
    print_line(f"features: {'unknown' if found['features'] is None else _words(found['features']) or 'none'}")
    for gap in found["gaps"]:
        print_line(f"not captured: {gap['what']}: {gap['why']}; {gap['hint']}")


def _entities(quota: Mapping[str, Any]) -> str:
    return ", ".join(f"{entity['type']} {entity['name'] or '(default)'}" for entity in quota["entities"])


def _subtopology(part: Mapping[str, Any]) -> str:
    read, written = (*part["source_topics"], *part["repartition_topics"]), part["sink_topics"]
    ways = [("reads", read), ("writes", written), ("keeps its state in", part["changelog_topics"])]
    return f"{part['subtopology_id']} " + ", ".join(f"{verb} {', '.join(names)}" for verb, names in ways if names)


def _settings(entity: Mapping[str, Any]) -> str:
    return f"{entity['kind']} {entity['name'] or '(all)'}: {_words(entity['values'])}"


def _print_list(name: str, values: Iterable[Any] | None, describe: Any) -> None:  # noqa: ANN401 - of the list's values
    if values is None:
        print_line(f"{name}: unknown")
        return
    lines = [describe(value) for value in values]
    print_line(f"{name}: {len(lines) or 'none'}")
    for line in lines:
        print_line(f"  {line}")


def _words(value: Any) -> str:  # noqa: ANN401 - of any JSON
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_words(inner)}" for key, inner in sorted(value.items()))
    return "" if value is None else str(value)
