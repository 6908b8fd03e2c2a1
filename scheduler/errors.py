"""The one error class of scheduler: everything the package refuses is raised as a subclass of it."""

from __future__ import annotations


class SchedulerError(Exception):
    """A task graph, device or program that scheduler refuses; the message names the thing, the fault, the way out."""


class InvalidTaskGraph(SchedulerError):
    """A task graph that means nothing: a cycle, an unknown region, a kernel without blocks."""


class InvalidDevice(SchedulerError):
    """A device that cannot be used: no multiprocessor, a limit that is missing or negative."""


class InvalidProgram(SchedulerError):
    """A program that is not well formed: it names regions, kernels, blocks, workers or tickets that are not there."""


class UnsafeProgram(SchedulerError):
    """A program that may hang or read what is not written yet; the message names the cycle, edge or resource."""
