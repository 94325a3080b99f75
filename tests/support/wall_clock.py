"""A wall clock that a test sets, for the programs it starts."""

from __future__ import annotations

import subprocess
import sys

from tests.tools.command import Place

__all__ = ["Clock"]

JUMPING_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static int64_t seconds(void)
{
    static volatile int64_t *jump;
    if (!jump)
        jump = mmap(NULL, sizeof *jump, PROT_READ, MAP_SHARED, open(getenv("CLOCK_JUMP"), O_RDONLY | O_CLOEXEC), 0);
    return *jump;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += seconds();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out)
        *out = precise.tv_sec;
    return precise.tv_sec;
}
"""
"""Adds the seconds in a file to the wall clock of a process, as if an administrator had set it; other clocks are left
alone, as the kernel leaves them. Setting the real one would hit everything on the machine, and time namespaces have no
wall clock of their own."""


class Clock:
    """The wall clock of everything that `place` starts from here on."""

    def __init__(self, place: Place) -> None:
        source, library, self._file = (place.folder / name for name in ("clock.c", "clock.so", "clock.jump"))
        source.write_text(JUMPING_CLOCK)
        self.jump(0)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        place.environ |= {"LD_PRELOAD": str(library), "CLOCK_JUMP": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Show the time `seconds` from now."""
        self._file.touch()
        with open(self._file, "r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
