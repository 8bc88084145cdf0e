"""Loads the fixtures that several folders of tests share, one plugin per thing they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

# No test asserts a time: machines are shared, and the first call compiles.
settings.register_profile("maxbrod", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
# For the inner loop (`make test-quick`): drawing examples takes most of its time, and `make test` draws all of them.
_QUICK_EXAMPLES = 15
settings.register_profile("quick", settings.get_profile("maxbrod"), max_examples=_QUICK_EXAMPLES)
settings.load_profile("maxbrod")

_OWN_SETTINGS = "_hypothesis_internal_use_settings"
_STARTS_A_JVM = frozenset({"cluster", "cluster3", "fenced", "java", "spark"})

pytest_plugins = ["support.archives", "support.clusters", "support.s3", "support.spark", "support.storages"]


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python loads its schemas with functions that Python 3.11 and 3.12 call deprecated, 3.13 no longer.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    quick = settings.get_current_profile_name() == "quick"
    for item in items:
        test = getattr(item, "obj", None)
        if quick and hasattr(test, _OWN_SETTINGS):
            # A test's own number of examples stands above the profile's; hypothesis has no public way to lower it.
            own = getattr(test, _OWN_SETTINGS)
            setattr(test, _OWN_SETTINGS, settings(own, max_examples=min(own.max_examples, _QUICK_EXAMPLES)))
        if _STARTS_A_JVM.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("full")
