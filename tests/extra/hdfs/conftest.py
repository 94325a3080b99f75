from tests.hdfs.conftest import _hdfs_to_hurt, fault_hdfs, hdfs, place

__all__ = ["_hdfs_to_hurt", "fault_hdfs", "hdfs", "place"]
