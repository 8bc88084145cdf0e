"""Jobs of a configuration: what is accepted, what is refused, and what excludes what."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from maxbrod.config import Config
from maxbrod.errors import UsageError
from maxbrod.schedule.jobs import VERBS, ScheduledJob, find_job, read_jobs

DAILY = {"cron": "0 3 * * *"}


def jobs_of(jobs: dict[str, Any], **file: Any) -> dict[str, ScheduledJob]:
    config = Config.model_validate({"archive": "/a", "jobs": jobs, **file})
    return {job.name: job for job in read_jobs(config)}


def job_of(settings: dict[str, Any], **file: Any) -> ScheduledJob:
    return jobs_of({"j": settings}, **file)["j"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_a_job_may_run_is_there(verb: str) -> None:
    options = {"once": True} if verb in {"replicate egress", "replicate ingress"} else {}
    job = job_of({"verb": verb, "options": options, **DAILY})
    assert callable(job.declared.run)
    assert (job.call().as_json, job.call().quiet, job.follows) == (True, True, False)


def test_a_job_has_its_section_of_the_file_and_its_own_options_over_it() -> None:
    file = {"backup": {"exclude": ["tmp-*"], "rate_bytes_per_s": "1MB", "metrics_port": 9464}}
    job = job_of({"verb": "backup", "options": {"topics": "a-*", "rate_bytes_per_s": "2MB"}, **DAILY}, **file)
    options = job.call().options
    assert (options.exclude, options.topics, options.rate_bytes_per_s) == (("tmp-*",), ("a-*",), 2_000_000)
    # Else several jobs would serve metrics on one port.
    assert options.metrics_port is None
    assert job.config.backup is options


def test_a_job_may_have_another_archive_and_another_cluster() -> None:
    file = {"kafka": {"bootstrap": "live:1"}, "clusters": {"staging": {"bootstrap": "staging:1"}}}
    other = job_of({"verb": "drill", "archive": "/b", "cluster": "staging", **DAILY}, **file)
    assert (other.config.archive, other.config.cluster.bootstrap) == ("/b", "staging:1")
    # A drill writes only to a cluster that is named for it.
    assert other.call().given["bootstrap"] == "staging:1"
    assert "bootstrap" not in job_of({"verb": "drill", **DAILY}, **file).call().given


@pytest.mark.parametrize(
    "settings",
    [
        {"verb": "backup", "options": {"follow": True}},
        {"verb": "replicate egress"},
        {"verb": "replicate  ingress", "options": {"every": "1s"}},
    ],
)
def test_what_runs_until_it_is_stopped_follows(settings: dict[str, Any]) -> None:
    assert job_of(settings).follows
    with pytest.raises(UsageError, match="all the time"):
        job_of({**settings, **DAILY})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"verb": "backupp", **DAILY}, "did you mean backup"),
        ({"verb": "restore", **DAILY}, "a job cannot run 'restore'"),
        ({"verb": "backup"}, "needs cron or every"),
        ({"verb": "backup", "cron": "0 3 * * * *"}, "five fields"),
        ({"verb": "backup", "zone": "Mars/Olympus", **DAILY}, "no such time zone"),
        ({"verb": "check", "options": {"deeep": True}, **DAILY}, "did you mean deep"),
        ({"verb": "backup", "options": {"rate_bytes_per_s": "fast"}, **DAILY}, "rate_bytes_per_s"),
        ({"verb": "drill", "cluster": "stagin", **DAILY}, "did you mean staging"),
        ({"verb": "status", "options": {"watch": "5s"}, **DAILY}, "never ends"),
    ],
)
def test_a_wrong_job_is_refused_by_its_name(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match="the job j is wrong") as caught:
        job_of(settings, clusters={"staging": {"bootstrap": "s:1"}})
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ({"j": {"verb": "check", "every": "1h", **DAILY}}, "cron or every"),
        ({"j": {"verb": "check", "every": "100ms"}}, "at least 1s"),
        ({"j": {"verb": "check", "every": "10m", "jitter": "11m"}}, "jitter"),
        ({"j": {"verb": "check", "crom": "0 3 * * *"}}, "crom"),
        ({"a/b": {"verb": "check", **DAILY}}, "name"),
        ({"j": {"verb": "check", "ping": "ping.example", **DAILY}}, "https"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_file_is_read(jobs: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Config.model_validate({"jobs": jobs})


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    jobs = tuple(jobs_of({"nightly": {"verb": "check", **DAILY}}).values())
    assert find_job(jobs, "nightly").verb == "check"
    with pytest.raises(UsageError, match="did you mean nightly"):
        find_job(jobs, "nightl")


def excluded(first: dict[str, Any], second: dict[str, Any], **file: Any) -> bool:
    found = jobs_of({"a": {**DAILY, **first}, "b": {**DAILY, **second}}, **file)
    return bool(found["a"].times.excludes & found["b"].times.excludes)


def test_writers_of_one_archive_exclude_each_other_and_readers_do_not() -> None:
    assert excluded({"verb": "backup"}, {"verb": "backup"})
    assert excluded({"verb": "prune"}, {"verb": "compact"})
    assert not excluded({"verb": "backup"}, {"verb": "backup", "archive": "/b"})
    assert not excluded({"verb": "check"}, {"verb": "backup"})
    assert not excluded({"verb": "check"}, {"verb": "drill"})
    # Our own catalog lets both commit; another tool's archive has one writer.
    assert not excluded({"verb": "backup"}, {"verb": "compact"})
    assert excluded({"verb": "backup"}, {"verb": "compact"}, layout="parquet")


def test_a_job_that_could_never_begin_beside_one_that_follows_is_refused() -> None:
    follower = {"verb": "backup", "options": {"follow": True}}
    with pytest.raises(UsageError, match="nightly is wrong: it can never begin: live writes"):
        jobs_of({"live": follower, "nightly": {"verb": "backup", **DAILY}})
    assert jobs_of({"live": {**follower, "enabled": False}, "nightly": {"verb": "backup", **DAILY}})
    assert jobs_of({"live": follower, "nightly": {"verb": "compact", **DAILY}})
