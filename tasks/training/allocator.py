"""How glibc is told to keep memory. Read when a process starts, so it is set for workers, never from within."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""Otherwise every large temporary is mapped and page-faulted anew in each step (up to 30 % slower)."""
