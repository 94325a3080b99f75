"""The read planner: it decides which range to fetch next, from which host, within the memory budget.

`stripefs.read.reader` carries its decisions out. Nothing in this package does I/O, knows trio or reads a clock: time is
an argument, so the whole of it runs under plain values, under Hypothesis, and under the simulator in `bench/`.

**Ranges.** A file is cut into chunks of 1 MiB counted from the start of each block (`stripefs.format.blocks`). The unit
of fetching is a range: a run of absent chunks inside one block, at most `range_size` long and ending on a multiple of
it. A chunk belongs to at most one range, so concurrent readers of one chunk wait for one fetch.

**Cursors.** Every read moves a cursor: the one whose position it continues (within a tolerance, because the kernel's
read-ahead arrives out of order and safetensors skips a little), else a new one. Cursors belong to the file version,
not to a descriptor, so two processes that interleave on one file are two steady streams and not noise. A cursor looks
ahead over a window of bytes. The window at least doubles whenever the reader starves (the bytes were not there yet),
shrinks by a quarter after a full window without starving, and never exceeds a multiple of what the cursor has already
read. The multiple is the file's: it begins high, and falls as look-ahead is dropped that no reader ever asked for.
Of a file whose ranges all came quickly lately, no more than 128 MiB of the window are looked ahead.
Look-ahead skips what another stream, which began further on, has read already, and what anybody read in the last ten
seconds. A cursor that stands still for three seconds, or stands where others have read, looks no further ahead. One
that begins in the look-ahead of another takes over its window and what lies ahead of both. A cursor whose reads begin
lower and lower runs backward and looks ahead below itself. Where look-ahead has come to the end of a file that is one
of several numbered ones, it goes on in the next (`FileSeries`), within the same window.

**Choice.** A range that a reader waits for goes first. Look-ahead is taken in order of distance from its cursor; when
the next range lies on hosts that are all busy, the scheduler goes on to later ranges on idle ones as far as the window
and the memory go: on randomly placed blocks this, not the number of threads, decides the speed. Among replicas the one
expected to finish first wins. Each host has a limit of its own and never more than half of all reads under way.

**Memory.** One budget for all files. Each attempt reserves the bytes of its range before it starts. One range for every
active stream stays out of look-ahead's reach, and no stream looks further ahead than its share; streams that begin in
one another's look-ahead have one share together. Consumed ranges go first when room is needed, oldest first, then what
one stream was to read and another has read, then the look-ahead of cursors that stand still; a range that a reader
waits for may also take the place of the farthest look-ahead of the others; ranges shrink as the budget divided by the
streams shrinks. So the bytes a reader waits for always find room, however many readers there are. Little of the
consumed bytes stays, until a reader comes to bytes that were dropped behind another one.

**Little memory, many hosts.** Where the budget has no room for several full ranges a host, ranges shrink and fewer of
them run at each host: memory that reads of some hosts hold is missing for the others (`BudgetShare.divide`).

**Local hosts.** Blocks may also lie on a host that is no burden to anybody: a disk of this machine. They are read there
alone, however busy it is, since asking others would spend what keeping them was to spare. It is a host like any other
in that it is avoided after a failure and hedged when it is silent or slow, measured against its own kind; then the
others serve.

**Slow and broken hosts.** A host that fails, or that sends nothing for a second while this process runs, is avoided
for a while, twice as long each time. A range that is silent, or takes several times as long as its recent peers, is
asked for again from another replica; the first answer counts. A failed range is tried again, elsewhere first, until the
deadline of the last reader that asked; when no replica served it, the store is asked anew where the block lies.
"""

from stripefs.read.planner.hosts import HostTable, Limits
from stripefs.read.planner.planner import Planner
from stripefs.read.planner.range_buffer import Attempt, FilePlan, Range, RangeBuffer, RangeState
from stripefs.read.planner.readahead import Cursor, FileSeries

__all__ = [
    "Attempt",
    "Cursor",
    "FilePlan",
    "FileSeries",
    "HostTable",
    "Limits",
    "Planner",
    "Range",
    "RangeBuffer",
    "RangeState",
]
