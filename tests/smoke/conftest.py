from tests.cluster.conftest import place
from tests.imagefs.conftest import service

__all__ = ["place", "service"]
