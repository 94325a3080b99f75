from tests.hdfs.conftest import mounts, place

__all__ = ["mounts", "place"]
