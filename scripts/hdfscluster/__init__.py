"""A real HDFS of several processes on one machine, for tests, benchmarks and demonstrations.

Every process of an instance carries its name in its command line and every network namespace has it in its own name,
so what belongs to an instance is read from the kernel, never from files that a crash could leave wrong:

    errors      the one exception, whose text is what the user reads
    config      what an instance is: names, addresses, ports, Hadoop's site files
    network     namespaces, links, token buckets, byte counters
    process     the JVMs: launching, finding, signalling
    jars        Hadoop's jars from Maven, checked against a list of digests
    archive     class data that the JVMs share, so that they start in half the time
    health      what NameNode and DataNodes say of themselves over JMX
    instance    start, stop, status, and what happens to single nodes
    cli         the command
"""
