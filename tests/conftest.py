"""Drawn examples have no deadline: how long one takes says how busy the machine is, and what is compiled already."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
