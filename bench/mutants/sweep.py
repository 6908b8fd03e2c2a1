"""Wrong models by seed: how many of them the check calls different, by the class of the change."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.bar import Bar, Sheet, console
from bench.mutants import changes
from bench.mutants.trial import Wrong
from bench.workers import Worker

ISSUE = 15
COUNT, QUICK_COUNT = 1000, 60
SHARE = 0.95  # of the wrong models that must be told
LIMIT = 120.0  # seconds to find a wrong model and an input for it
LIMIT_CHECK = 400.0  # seconds for the check, whose own limit is below
JOBS = 2
BATCH = 16  # trials between two looks at the count
MOST_TRIALS = 12  # for each wrong model that is wanted


@dataclass(frozen=True, slots=True)
class Told:
    """A wrong model and the check's word on it."""

    wrong: Wrong
    status: str

    @property
    def caught(self) -> bool:
        """Whether the check called it different."""
        return self.status == "different"


def sweep(seed: int, count: int, jobs: int, folder: str, show: Callable[[Told], None]) -> Iterator[Told]:
    """The first `count` wrong models of the seed, in order, whatever the number of workers."""
    workers: queue.Queue[Worker] = queue.Queue()
    for _ in range(jobs):
        workers.put(Worker())

    def trial(number: int) -> Told | None:
        worker = workers.get()
        try:
            reply = worker.call("bench.mutants.trial:attempt", seed, number, limit=LIMIT)
            if reply.kind != "value" or reply.value is None:
                return None  # none was found, or ONNX Runtime crashed or did not end with it
            answer = worker.call("bench.mutants.trial:judged", number, folder, limit=LIMIT_CHECK)
            told = Told(Wrong(**reply.value), answer.value if answer.kind == "value" else answer.kind)
            if not told.caught:
                show(told)
            return told
        finally:
            workers.put(worker)

    given: set[tuple[str, str]] = set()  # the same change of the same model counts once
    try:
        with ThreadPoolExecutor(jobs) as pool:
            for begin in range(0, MOST_TRIALS * count, BATCH):
                for told in pool.map(trial, range(begin, begin + BATCH)):
                    if told is None or len(given) == count or (told.wrong.model, told.wrong.text) in given:
                        continue
                    given.add((told.wrong.model, told.wrong.text))
                    yield told
                if len(given) == count:
                    return
    finally:
        while not workers.empty():
            workers.get().__exit__()


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = "", seed: int | None = None,
    count: int = COUNT, jobs: int = JOBS, save: Path | None = None,
) -> list[Bar]:  # fmt: skip
    """Wrong models: how many the check calls different."""
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    count = QUICK_COUNT if quick else count
    sheet.console.print(f"seed {chosen}")

    def show(told: Told) -> None:
        wrong = told.wrong
        sheet.console.print(
            f"{told.status}: {wrong.number} {wrong.group} {wrong.model}: {wrong.text} ({wrong.shown_by})", markup=False
        )

    found = list(sweep(chosen, count, jobs, str(save) if save else "", show))
    missed = [told for told in found if not told.caught]
    classes: tuple[tuple[str, Callable[[Told], str]], ...] = (
        ("change", lambda told: told.wrong.kind),
        ("model", lambda told: told.wrong.group),
        ("shown by", lambda told: told.wrong.shown_by),
    )
    for title, of in classes:
        names = sorted({of(told) for told in found}, key=[*changes.KINDS].index if title == "change" else None)
        rows = []
        for name in names:
            own = [told for told in found if of(told) == name]
            caught, verified = (sum(told.status == status for told in own) for status in ("different", "verified"))
            told_apart = f"{100 * caught / len(own):.1f} %"
            rows.append((name, len(own), caught, verified, len(own) - caught - verified, told_apart))
        columns = (title, "counted", "caught", "called verified", "not run", "share caught")
        sheet.table(f"wrong models by {title}, seed {chosen}", columns, rows)
    sheet.table(
        "missed", ("number", "model", "class", "change", "shown by", "result", "status"),
        [(str(one.wrong.number), f"{one.wrong.model} ({one.wrong.group})", one.wrong.kind, one.wrong.text[:120],
          one.wrong.shown_by, one.wrong.seen, one.status) for one in missed],
    )  # fmt: skip
    caught = len(found) - len(missed)
    share = caught / len(found) if found else 0.0
    return [
        Bar(ISSUE, 5, "wrong models: called different by the check", f"{100 * SHARE:.0f} % of {count:,}",
            f"{100 * share:.1f} % of {len(found):,} (seed {chosen})", len(found) == count and share >= SHARE)
    ]  # fmt: skip


def main(
    seed: Annotated[int | None, typer.Option(help="Of the changes; drawn and printed when not given.")] = None,
    count: Annotated[int, typer.Option(help="Wrong models that are counted.")] = COUNT,
    quick: Annotated[bool, typer.Option(help="Sixty of them.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes.")] = JOBS,
    save: Annotated[Path | None, typer.Option(help="Write both models and the input of each one missed here.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Change good models into wrong ones and ask the check."""
    sheet = Sheet(console())
    bars = measure(sheet, quick=quick, seed=seed, count=count, jobs=jobs, save=save)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(main)
