"""The one error class of scheduler: everything the package refuses is raised as a subclass of it."""

from __future__ import annotations


class SchedulerError(Exception):
    """A task graph or program that scheduler refuses; the message names the task, the fault, the way out."""
