"""`python -m bench.pages FOLDER`: pages of U-Net, BERT and NASNet, their bytes, console errors and pictures.

Each page is opened in Chromium at 1,400 and at 400 pixels, light and dark; pictures of the whole page lie beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import graphopt
import models
from graphopt.report.memory.page import memory_page
from graphopt.report.schedule.page import schedule_page
from tests.report.browser import Charted, Scheme, opened, sideways

MEMORY = ("unet_own", "bert_base", "nasnet_a_mobile")
SCHEDULES = (("unet_own", "cpu:2"), ("bert_base", "h200"), ("nasnet_a_mobile", "h200"))
WIDTHS = (1400, 400)
POINTS = 5  # as graphopt memory --html has them


def pages() -> Iterator[tuple[str, bytes]]:
    """Each page with its name."""
    for name in MEMORY:
        yield f"memory_{name}", memory_page(graphopt.memory(models.load(name), points=POINTS).record)
    for name, device in SCHEDULES:
        on = device.replace(":", "")
        yield f"schedule_{name}_{on}", schedule_page(graphopt.schedule(models.load(name), device=device).record)


def main() -> None:
    """Write, open, take pictures, and print a line for each page."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pages():
        file = folder / f"{name}.html"
        file.write_bytes(content)
        errors: list[str] = []
        for width in WIDTHS:
            for scheme in get_args(Scheme):
                with opened(file, width=width, scheme=scheme) as seen:
                    Charted(seen.page)
                    seen.page.screenshot(path=folder / f"{name}_{width}_{scheme}.png", full_page=True)
                    errors += [*seen.errors, *seen.asked_for, *sideways(seen.page)]
        print(f"{name:<34} {len(content):>10,} bytes, {len(errors)} errors {errors[:3] or ''}", flush=True)


if __name__ == "__main__":
    main()
