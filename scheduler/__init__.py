"""Co-scheduling: which worker runs which block and what it waits for, proved free of deadlock before it is run.

Part of graphopt.
"""
