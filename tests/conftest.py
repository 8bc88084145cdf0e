"""Loads the fixtures that several folders of tests share, one plugin per thing they start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Tests print as into a pipe, however wide and colourful the terminal or the CI is that runs them: what a test prints
# must not depend on where it runs. At once, as a console keeps the width that it finds when its module is loaded.
for _variable in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_variable, None)

# No test asserts a time: machines are shared, and the first call compiles.
settings.register_profile("maxbrod", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
# For the inner loop (`make test-quick`): drawing examples takes most of its time, and `make test` draws all of them.
_QUICK_EXAMPLES = 15
settings.register_profile("quick", settings.get_profile("maxbrod"), max_examples=_QUICK_EXAMPLES)
settings.load_profile("maxbrod")

_OWN_SETTINGS = "_hypothesis_internal_use_settings"
# What starts a server: Kafka and Spark take seconds, S3 is compiled at its first start.
_SERVERS = frozenset(
    {"azure", "azurite", "cluster", "cluster3", "fenced", "gcs", "java", "locking_s3", "lying_s3", "s3", "spark"}
    | {"versioned_s3"}
)
# The files that take longest, each about 20 s or more. They are handed out first: by default xdist begins
# with the files of most tests, so that one of two workers would be left alone with these at the end.
_LONGEST = (
    "test_bench.py",
    "table/test_spark_connect.py",
    "restore/test_kill_sweep.py",
    "lifecycle/test_store_faults.py",
    "backup/test_kill_sweep.py",
    "repair/test_faults.py",
    "restore/test_transform.py",
    "cluster/test_standalone.py",
    "table/test_kafka_sink_kill.py",
    "table/test_scans.py",
    "compact/test_by_key.py",
    "backup/test_storage_faults.py",
    "catalog/test_queries.py",
    "backup/test_signals.py",
    "replicate/test_exactly_once.py",
    "test_install.py",
    "repair/test_rebuild.py",
    "transform/test_staging.py",
    "sandbox/test_cluster_faults.py",
    "table/test_decoding.py",
    "work/test_session.py",
    "restore/cold/test_real.py",
    "table/test_sink_spark.py",
    "table/test_stream_spark.py",
    "restore/test_signals.py",
    "drill/test_real.py",
    "lifecycle/test_clouds.py",
    "lifecycle/test_large_archives.py",
    "mount/test_real_consumers.py",
    "mount/test_choices.py",
    "replicate/test_waking.py",
    "test_waiting.py",
    "work/test_shared_session.py",
    "schedule/test_loop.py",
)
# The files that use `cluster3`. One worker gets all of them, so that one run starts one such cluster; and late, as its
# four processes cost a tenth of a processor even when nobody uses them, until the run ends.
_THREE_BROKERS = (
    "backup/test_broker_faults.py",
    "kafka/test_capture.py",
    "kafka/test_client.py",
    "kafka/test_faults.py",
    "kafka/test_open_transactions.py",
    "kafka/test_produce_faults.py",
    "kafka/test_topic_admin.py",
    "replicate/test_faults.py",
    "restore/test_broker_faults.py",
    "sandbox/test_cluster_topics.py",
)

pytest_plugins = [
    "support.archives",
    "support.clouds",
    "support.clusters",
    "support.documents",
    "support.library",
    "support.s3",
    "support.spark",
    "support.storages",
]


def pytest_configure(config: pytest.Config) -> None:
    # Whatever the developer has configured for their own use.
    os.environ["MAXBROD_CONFIG"] = ""
    os.environ.pop("MAXBROD_ARCHIVE", None)
    # kafka-python loads its schemas with functions that Python 3.11 and 3.12 call deprecated, 3.13 no longer.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    quick = settings.get_current_profile_name() == "quick"
    for item in items:
        test = getattr(item, "obj", None)
        if quick and hasattr(test, _OWN_SETTINGS):
            # A test's own number of examples stands above the profile's; hypothesis has no public way to lower it.
            own = getattr(test, _OWN_SETTINGS)
            setattr(test, _OWN_SETTINGS, settings(own, max_examples=min(own.max_examples, _QUICK_EXAMPLES)))
        if _SERVERS & {*getattr(item, "fixturenames", ()), *_kinds(item)} or _name(item.path) in _LONGEST:
            item.add_marker("full")
        if "cluster3" in getattr(item, "fixturenames", ()) and _name(item.path) not in _THREE_BROKERS:
            raise pytest.UsageError(f"{_name(item.path)} uses cluster3: add it to _THREE_BROKERS in {__file__}")
    full = {item.path for item in items if item.get_closest_marker("full") is not None}
    # The longest files, then those that start a server, then the rest, which fill the last seconds of both workers.
    items.sort(key=lambda item: (_turn(item.path), item.path not in full, _name(item.path) in _THREE_BROKERS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile` has it, with the files of `_THREE_BROKERS` as one."""
    if config.getoption("dist") != "loadfile":
        return None
    # A run of one process needs no xdist, which has no types.
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # noqa: PLC0415

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "three brokers" if file.endswith(_THREE_BROKERS) else file

    return ByFile(config, log)


def _kinds(item: pytest.Item) -> list[str]:
    """What fixtures such as `storage` and `place` are asked to be: a kind that is a server is asked for by its name."""
    call = getattr(item, "callspec", None)
    return [] if call is None else [kind for kind in call.params.values() if isinstance(kind, str)]


def _turn(path: Path) -> int:
    name = _name(path)
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


def _name(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).as_posix()
