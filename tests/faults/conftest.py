from tests.cluster.conftest import mounts, place, transport

__all__ = ["mounts", "place", "transport"]
