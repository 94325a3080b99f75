"""What was read of remote files, kept on local disk, so that the next load on this host need not ask the store for it.

    cache = Cache(settings)              # stripefs.cache.cache: one a process
    store = CachedStore(inner, cache)    # stripefs.cache.store: a store like `inner`; the reader stands on it

**What is kept.** Blocks of 1 MiB (`grid`) of versions of files: a key (`key`) says which version of which file a block
belongs to, so bytes of another version are never found. Each block has a check value (`table`), looked at on every hit;
what does not fit counts as absent and is fetched again. 64 blocks are one file, a segment (`segment`), and the file
system is the only index (`place`). Nothing must be right for bytes to be right: files may be missing, cut, swapped or
half written, by a crash or by anybody.

**Reading.** `handle` tells the planner of reads where the cache has what (a host called "local cache" in front of the
hosts of a block), answers from disk what is there, and fetches the rest from the store. What it fetched goes to the
filler, which writes it behind the reader's back. A disk that is full, fails (`disk`) or reads slower than the store
(`pace`) is left alone for a while; it costs speed, never an answer.

**Several processes.** All of a host share the folder, whatever they are. Whoever fetches a block holds a lock on its
place in the segment until it is written (`version`): the others wait for it, look again, and find it. The lock ends
with its process. How much room is taken is counted in one place, under a lock (`room`); who needs room removes what was
used longest ago (`keep`), whole segments at a time, while those who read them go on.
"""
