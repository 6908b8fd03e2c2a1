"""What was measured of kernels on this machine: kept in the user's cache folder, told, handed on."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import msgspec

from graphopt.errors import OptionError
from graphopt.files.single import write_file
from graphopt.flows.cluster import Cluster, reached
from graphopt.flows.measured_elsewhere import OnCluster, of_this_kind
from graphopt.flows.records.tuning import TemplateLine, TuningFile, TuningRecord
from graphopt.machine.kept import cache_folder, kept_file, own_key, require_writable
from graphopt.model.text import Progress
from graphopt.program.tuning import Tuning
from kernels.tune import Database


def tuning_of(seconds: float, progress: Progress, cluster: Cluster | None = None) -> Tuning | None:
    """Measuring for so many seconds, with what is kept for this machine, or on a cluster; None for 0.

    Raises OptionError for a time that is none, and for a cluster whose workers are not of this machine's kind, and
    SaveError where nothing can be kept.
    """
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise OptionError(f"kernels cannot be measured for {seconds:g} seconds; 0 measures nothing.")
    if not seconds:
        if cluster is not None:
            raise OptionError(
                "kernels are measured on a cluster in a time to tune; give one, or leave out the cluster."
            )
        return None
    require_writable(cache_folder())
    if cluster is None:
        return Tuning(kept_choices(), seconds, progress)
    with reached(cluster) as client:
        of_this_kind(client)  # before the work is done
    return Tuning(kept_choices(), seconds, progress, elsewhere=OnCluster(cluster))


def kept_tuning(seconds: float) -> Tuning | None:
    """What was measured before, where there is a time to tune; nothing is measured with it."""
    return Tuning(kept_choices(), 0.0) if seconds else None


def kept_choices() -> Database:
    """The choices that are kept for this machine."""
    return Database(kept_file(own_key(), cache_folder(), "tuned", "json"))


def tuning_record() -> TuningRecord:
    """What is kept for this machine, by template."""
    database, key = kept_choices(), own_key()
    choices = database.choices().values()
    kernels = Counter(one.kernel for one in choices)
    lines = []
    for template in sorted(kernels):
        measured = [one for one in choices if one.kernel == template and len(one.measured) > 1]
        # The likely best by estimate was measured first.
        changed = [one for one in measured if one.candidate != next(iter(one.measured))]
        lines.append(TemplateLine(template, kernels[template], len(measured), len(changed)))
    return TuningRecord(key.cpu, str(database.path), tuple(lines))


def export_choices(path: str | os.PathLike[str]) -> TuningRecord:
    """Write what is kept for this machine into a file, for another one of its kind; raises SaveError."""
    content = TuningFile(own_key(), kept_choices().choices())
    write_file(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    return tuning_record()


def import_choices(path: str | os.PathLike[str]) -> TuningRecord:
    """Keep what another machine of this kind has exported, in place of what is known of the same kernels.

    Raises OptionError for another file, or one of another processor, other cache sizes or another LLVM.
    """
    try:
        given = msgspec.json.decode(Path(path).read_bytes(), type=TuningFile)
    except OSError as error:
        raise OptionError(f"'{path}' cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise OptionError(f"'{path}' is no file of graphopt tune --export: {error}.") from error
    if given.schema != TuningFile.__struct_defaults__[-1]:
        raise OptionError(f"'{path}' is of schema '{given.schema}'; export it again with this version.")
    if given.key != own_key():
        raise OptionError(
            f"'{path}' is of {given.key.cpu} (LLVM {given.key.llvm}), and this machine is {own_key().cpu} (LLVM "
            f"{own_key().llvm}), or has other caches; its choices do not hold here."
        )
    require_writable(cache_folder())
    kept_choices().add(given.choices)
    return tuning_record()
