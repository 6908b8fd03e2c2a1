"""The processor that this process runs on, measured: instructions, caches, and waits between its cores."""
