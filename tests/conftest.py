"""Settings of all tests: how long something takes on a busy host decides nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("any host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any host")
