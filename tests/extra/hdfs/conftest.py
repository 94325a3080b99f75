from tests.cluster.conftest import mounts, place

__all__ = ["mounts", "place"]
