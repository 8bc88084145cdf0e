"""The jobs of a configuration, validated: what each runs, with which options, when, and what it must not overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from maxbrod.cli.commands import Call, DeclaredVerb
from maxbrod.cli.verbs import load
from maxbrod.config import Config, KafkaConfig, complaints, lay_over
from maxbrod.errors import UsageError
from maxbrod.option_values import show_seconds
from maxbrod.schedule.plan import JobTimes
from maxbrod.schedule.slots import EverySlots, Slots, parse_cron
from maxbrod.sections import suggestion

if TYPE_CHECKING:
    from maxbrod.sections import JobConfig

VERBS: Final = {
    "backup": "backup.cli:backup",
    "check": "check.cli:check",
    "compact": "compact.cli:compact",
    "compare": "compare.cli:compare",
    "convert": "convert.cli:convert",
    "copy": "copy.cli:copy",
    "drill": "drill.cli:drill",
    "gc": "inspect.cli:gc",
    "lock extend": "lock.cli:extend",
    "prune": "prune.cli:prune",
    "replicate egress": "replicate.cli:egress",
    "replicate ingress": "replicate.cli:ingress",
    "replicate verify": "replicate.cli:verify",
    "status": "inspect.cli:status",
}
"""What a job may run. Not here: what wants a person (restore, repair, promote), and what serves others (mount)."""
_FILLS: Final = frozenset({"backup", "replicate egress"})
"""One of these at a time adds to an archive."""
_CHANGES: Final = frozenset({"compact", "gc", "prune"})
"""One of these at a time rewrites an archive or takes something away."""
_METRICS: Final = {"metrics_port": None, "metrics_file": None}
"""Settings of a section that are for the command. A scheduler has its own; a job may still have them in its options."""
_NATIVE: Final = frozenset({None, "kafka"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """A job that can be run."""

    name: str
    verb: str
    times: JobTimes
    when: str
    """In words."""
    enabled: bool
    archive: str | None
    config: Config
    """The configuration of the file with what the job says over it."""
    declared: DeclaredVerb
    given: Mapping[str, Any]
    """What a command line would have given."""
    settings: JobConfig

    @property
    def follows(self) -> bool:
        return self.times.slots is None

    def call(self) -> Call[Any]:
        section = self.declared.section
        options = getattr(self.config, section)
        return Call(options=options, config=self.config, given=self.given)


def read_jobs(config: Config) -> tuple[ScheduledJob, ...]:
    """Return the jobs of a configuration. UsageError names the job that is wrong, and what is wrong about it."""
    jobs = tuple(_job(config, name, settings) for name, settings in config.jobs.items())
    followers = {what: job for job in jobs if job.enabled and job.follows for what in job.times.excludes}
    for job in jobs:
        met = next((followers[what] for what in job.times.excludes if what in followers), job)
        if job.enabled and met is not job:
            raise _wrong(job.name, f"it can never begin: {met.name} writes to the same archive all the time")
    return jobs


def find_job(jobs: tuple[ScheduledJob, ...], name: str) -> ScheduledJob:
    """Return the job of this name. UsageError: there is none."""
    for job in jobs:
        if job.name == name:
            return job
    raise UsageError(f"there is no job {name}{suggestion(name, [job.name for job in jobs])}", hint="see run --list")


def _job(config: Config, name: str, settings: JobConfig) -> ScheduledJob:
    verb = " ".join(settings.verb.split())
    if verb not in VERBS:
        raise _wrong(name, f"a job cannot run {verb!r}{suggestion(verb, VERBS)}")
    declared: DeclaredVerb = load(VERBS[verb]).verb
    config, given = _with_place(config, name, settings)
    section = declared.section
    unknown = next((option for option in settings.options if option not in declared.own), None)
    if unknown is not None:
        raise _wrong(name, f"options: {verb} has no option {unknown}{suggestion(unknown, declared.own)}")
    before = getattr(config, section) if section in Config.model_fields else declared.model()
    known = vars(before)
    of_command = {option: value for option, value in _METRICS.items() if option in known}
    try:
        options = lay_over(before, {**of_command, **settings.options})
    except ValidationError as error:
        raise _wrong(name, f"options: {complaints(error, declared.model)}") from None
    if getattr(options, "watch", None) is not None:
        raise _wrong(name, f"options: {verb} with watch never ends")
    follows = _follows(verb, options)
    times = JobTimes(
        name=name,
        slots=_slots(name, settings, follows=follows),
        jitter_ms=round(settings.jitter * 1000),
        catch_up=settings.catch_up,
        begins_at_once=settings.every is not None,
        excludes=_excludes(verb, config),
    )
    return ScheduledJob(
        name=name,
        verb=verb,
        times=times,
        when=_words(settings),
        enabled=settings.enabled,
        archive=config.archive,
        config=config.model_copy(update={section: options}),
        declared=declared,
        given={**given, **settings.options, "json": True, "quiet": True},
        settings=settings,
    )


def _with_place(config: Config, name: str, settings: JobConfig) -> tuple[Config, dict[str, Any]]:
    """The configuration with the archive and the cluster that the job names, and what it names."""
    given: dict[str, Any] = {
        place: named for place in ("archive", "layout") if (named := getattr(settings, place)) is not None
    }
    changed: dict[str, Any] = dict(given)
    if settings.cluster is not None:
        cluster: KafkaConfig | None = config.clusters.get(settings.cluster)
        if cluster is None:
            raise _wrong(name, f"there is no cluster {settings.cluster}{suggestion(settings.cluster, config.clusters)}")
        changed["kafka"], given["bootstrap"] = cluster, cluster.bootstrap
    return config.model_copy(update=changed), given


def _follows(verb: str, options: Any) -> bool:  # noqa: ANN401 - of any verb
    if verb in {"backup", "copy"}:
        return bool(options.follow)
    return verb in {"replicate egress", "replicate ingress"} and not options.once


def _slots(name: str, settings: JobConfig, *, follows: bool) -> Slots | None:
    if follows:
        if settings.cron is not None or settings.every is not None:
            raise _wrong(name, "it follows all the time, and has no cron or every; options.every is its interval")
        return None
    if settings.every is not None:
        return EverySlots(round(settings.every * 1000))
    if settings.cron is None:
        raise _wrong(name, "it needs cron or every")
    try:
        return parse_cron(settings.cron, settings.zone)
    except ValueError as error:
        raise _wrong(name, f"cron: {error}") from None


def _words(settings: JobConfig) -> str:
    if settings.cron is not None:
        return f"{settings.cron} {settings.zone}"
    return "all the time" if settings.every is None else f"every {show_seconds(settings.every)}"


def _excludes(verb: str, config: Config) -> frozenset[str]:
    """What only one job at a time may do: writers of one kind, of one archive."""
    if verb in _FILLS:
        return frozenset({f"fill {config.archive}"})
    if verb not in _CHANGES:
        return frozenset()
    # Our own catalog lets a backup and a compaction commit side by side. Other layouts have one writer.
    filling = () if config.layout in _NATIVE else (f"fill {config.archive}",)
    return frozenset({f"change {config.archive}", *filling})


def _wrong(name: str, what: str) -> UsageError:
    return UsageError(f"the job {name} is wrong: {what}", hint="see 'maxbrod help schedule'")
