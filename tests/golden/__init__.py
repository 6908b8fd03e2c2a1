"""Golden files of the zoo: what the optimizer leaves of each model, and what a program of it is made of.

A change that is meant changes these files with it, so that a reader of the change sees what it does to 34 models; one
that is not meant fails here. `pytest tests/golden tests/passes/test_zoo.py --update-golden` writes them. There are no
digests of object code: LLVM may change it without our doing.
"""
