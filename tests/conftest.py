"""What all tests share: how hypothesis runs, and how many threads a worker has."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
# On a build server a failure must be the change's own: the same examples every time, of which more say little.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, max_examples=30)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Workers of pytest-xdist share the cores: with a thread a core in each of them the suite takes half as long again.
# Processes that tests start inherit it.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(_share, 1)))
