from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test asserts a time: machines are shared, and the first call compiles.
settings.register_profile("maxbrod", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.load_profile("maxbrod")
