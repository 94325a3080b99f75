"""`hdfs://`: metadata by WebHDFS or hdfs-native; bytes from chosen DataNodes by data transfer or WebHDFS, or pinned.

store               HdfsStore: which transport and why; stat, scandir, open, space, hosts
handle              one version of a file: its blocks, reads, and the proof that the bytes belong to the version
block_locations     block locations by segments (pure but for the call that fetches), and known DataNodes
namenode_webhdfs    WebHDFS at the NameNodes: pooled connections
namenode_rpc        Hadoop RPC at the NameNodes: the calls that write a file by data transfer
namenode_failover   the active one of several NameNodes, availability
data_transfer       blocks of chosen DataNodes by HDFS's own protocol
fetch_process       the same in a process of its own, into memory that both share
transfer_hosts      the DataNodes that refuse it
transfer_write      a new file by that protocol
transfer_wire       its messages, packets and checksums (pure)
protobuf            fields of these messages, and of those of Hadoop RPC (pure)
connection          one connection: what is at an address, silence, WebHDFS's answer of one DataNode; idle ones
datanode_read       reads from chosen DataNodes: by data transfer, else by WebHDFS; small ones of several replicas
short_files         short files, read while they are opened
read_streams        consecutive reads of one DataNode out of one long answer of WebHDFS
writer              the choice of a client for placed files, other files, names
datanode_write      a new file by WebHDFS at one DataNode
pipeline_health     finds the DataNode that a placed file waits for
namespace           names, attributes, joins as `Store` promises them; the outcome of a change whose answer is lost
native              hdfs-native behind the same errors
native_write        the same for new files and changes
native_workarounds  corrupt blocks that hdfs-native does not tell, and its one user a process
libhdfs             bytes through libhdfs in a JVM of this process
hadoop_conf         URL and Hadoop's XML files -> NameNode addresses, user, root
wire                paths, JSON documents, exception names and listing order as the wire has them (pure)
"""
