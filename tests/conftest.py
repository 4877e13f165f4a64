"""Settings of all tests: how long something takes decides nothing; an ordinary user's tests are root of a user namespace."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from quickstart.errors import NeedsRootError
from quickstart.host import userns

settings.register_profile("any host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any host")

# Now, while this process has one thread; pytest-xdist's workers are its children, and root as it is. Unit tests need none of it.
try:
    userns.become_root()
    NO_ROOT = ""
except NeedsRootError as error:
    NO_ROOT = f"{error.message}: {error.hint}"
