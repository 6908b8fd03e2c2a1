"""Options of the tests; drawn examples have no deadline; nothing of the machine is measured for a program.

How long an example takes says how busy the machine is, and what is compiled already.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
os.environ["GRAPHOPT_MACHINE"] = "none"
os.environ["GRAPHOPT_TUNE"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew instead of comparing.")
