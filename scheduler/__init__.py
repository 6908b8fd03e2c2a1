"""Co-scheduling: which worker runs which block, and what it waits for.

Blocks of independent regions are placed side by side on the workers of a device, and the program is
proved free of deadlock before it is handed on. This release holds only the package's name and its error
class; the scheduler arrives with a later release.
"""
