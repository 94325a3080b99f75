"""Cache of remote files on local disk, so that the next load on this host need not ask the store.

    cache = Cache(settings)              # stripefs.cache.cache: one a process
    store = CachedStore(inner, cache)    # stripefs.cache.cached_store: a store like `inner`; the reader stands on it

**Blocks.** Blocks of 1 MiB of versions of files are kept: a key says which version of which file a block belongs to, so
bytes of another version are never found. Each block has a check value, looked at on every hit; a block that does not
fit counts as absent and is fetched again (`cache_format`). 64 blocks are one file, a segment (`segment`), and the
file system is the only index (`cachedir`). Nothing must be right for bytes to be right: files may be missing, cut,
swapped or half written, by a crash or by anybody.

**Reading.** `cached_store` tells the planner of reads which blocks the cache has (a host called "local cache" in front
of the hosts of a block), answers from disk what is there, and fetches the rest from the store. Threads of a queue write
that behind the reader's back (`writeback`, `checked_blocks`). A disk that is full, fails (`cache`) or reads slower than
the store (`policy`) is left alone for a while; it costs speed, never an answer.

**Several processes.** All of a host share the folder. One that fetches a block holds a lock on its place in the segment
until it is written, or until it ends: the others wait for it, look again, and find it (`checked_blocks`). The bytes in
use are counted in one place (`quota`).
"""
