"""Files out of the page cache, and the bandwidth at which one is read: by a small program in C."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bench.ram.networks import PLACE

Way = tuple[Literal["plain", "direct"], int]  # through the page cache or past it, bytes of a block
WAYS: tuple[Way, ...] = (
    ("plain", 4 << 20), ("plain", 16 << 20), ("direct", 1 << 19), ("direct", 1 << 20), ("direct", 2 << 20),
    ("direct", 4 << 20),
)  # fmt: skip
DROP = Path("/proc/sys/vm/drop_caches")
_TEXT = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Bytes of a file that are in the page cache, after it was asked to drop them. */
static long long forgotten(const char *path) {
    enum { WINDOW = 1 << 26 };
    static unsigned char there[WINDOW / 4096];
    struct stat known;
    long long found = 0, at;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &known)) return -1;
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    for (at = 0; at < known.st_size; at += WINDOW) {
        size_t bytes = known.st_size - at < WINDOW ? known.st_size - at : WINDOW;
        void *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, at);
        if (view == MAP_FAILED || mincore(view, bytes, there)) return -1;
        for (size_t page = 0; page < (bytes + 4095) / 4096; page++) found += there[page] & 1 ? 4096 : 0;
        munmap(view, bytes);
    }
    close(file);
    return found;
}

int main(int count, char **words) {
    if (!strcmp(words[1], "forget")) {
        long long left = 0;
        for (int i = 2; i < count; i++) left += forgotten(words[i]);
        printf("%lld\n", left);
        return 0;
    }
    size_t block = strtoull(words[3], NULL, 10);
    int direct = !strcmp(words[1], "direct");
    size_t whole = (block + HUGE - 1) / HUGE * HUGE; /* in huge pages a disk has fewer places to write to */
    char *room = aligned_alloc(HUGE, whole);
    int file = open(words[2], O_RDONLY | (direct ? O_DIRECT : 0));
    if (file < 0 || !room) return 1;
    madvise(room, whole, MADV_HUGEPAGE);
    memset(room, 0, whole);
    long long begin = now(), at = 0;
    for (;;) {
        ssize_t got = pread(file, room, block, at);
        if (got < 0) return 1;
        if (!direct) posix_fadvise(file, at, got, POSIX_FADV_DONTNEED);
        at += got;
        if ((size_t)got < block) break;
    }
    printf("{\"bytes\": %lld, \"ns\": %lld}\n", at, now() - begin);
    return 0;
}
"""


def compiled(text: str, name: str, *words: str) -> Path:
    """A program of C, in the folder of programs; `words` are further ones for the compiler."""
    program = PLACE / "programs" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    source = program.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["cc", "-O2", str(source), "-o", str(program), *words], check=True)
    return program


class Disk:
    """The program, compiled once."""

    def __init__(self) -> None:
        self._program = str(compiled(_TEXT, "disk"))

    def forget(self, *files: Path) -> int:
        """Drop the pages of files; all of the system's where that leaves some and may be. How many bytes are left."""
        left = self._forget(files)
        if left:
            try:
                DROP.write_text("1")
            except OSError:
                return left
            left = self._forget(files)
        return left

    def bandwidth(self, file: Path, ways: Sequence[Way] = WAYS) -> tuple[float, Way]:
        """Bytes a nanosecond of one thread that reads the file from first to last and drops pages behind, and how.

        The best of these ways. Raises OSError where none reads it.
        """
        found: list[tuple[float, Way]] = []
        for cache, block in ways:
            self.forget(file)
            done = subprocess.run([self._program, cache, file, str(block)], capture_output=True, check=False)
            if done.returncode == 0:  # not every file system reads past the page cache
                known = json.loads(done.stdout)
                found.append((known["bytes"] / known["ns"], (cache, block)))
        if not found:
            raise OSError(f"'{file}' cannot be read")
        return max(found)

    def _forget(self, files: tuple[Path, ...]) -> int:
        done = subprocess.run([self._program, "forget", *files], capture_output=True, check=True)
        return int(done.stdout)
