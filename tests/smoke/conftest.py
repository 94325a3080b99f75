from tests.hdfs.conftest import place
from tests.integration.imagefs.conftest import service

__all__ = ["place", "service"]
