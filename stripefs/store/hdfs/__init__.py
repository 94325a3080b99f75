"""`hdfs://`: metadata by WebHDFS or hdfs-native, bytes from chosen DataNodes by WebHDFS or pinned by hdfs-native.

store     HdfsStore: which transport and why; stat, scandir, open, space, hosts
handle    one version of a file: where its blocks lie, reads, and the proof that the bytes belong to the version
located   block locations by segments (pure but for the call that fetches)
rest      WebHDFS at the NameNodes: pooled connections, the active one of several
datanode  WebHDFS at one DataNode: one range into one buffer
writing   who writes what: placed files, other files, names
changes   names, attributes, joins as `Store` promises them; what becomes of a change whose answer is lost
sink      a new file by WebHDFS at one DataNode
native    hdfs-native behind the same errors
process_user  whose hdfs-native's connections of this process are
nativewrite  the same for new files and changes
away      whether the NameNodes are away, asked by one thread
conf      URL and Hadoop's XML files -> NameNode addresses, user, root
probe     what listens at an address, for error lines that help
wire      paths, JSON documents and exception names as the wire has them (pure)
order     HDFS's listing order into byte order (pure)
confirm   many waiting threads share one confirmation
"""

from stripefs.store.hdfs.store import HdfsStore

__all__ = ["HdfsStore"]
