"""Options of the tests; and drawn examples have no deadline.

How long an example takes says how busy the machine is, and what is compiled already.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew instead of comparing.")
