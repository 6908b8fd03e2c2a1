"""Compile a model and its C example, where there is a C compiler, and run it: python deploy_to_c.py MODEL.onnx DIR"""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import graphopt

source, folder = sys.argv[1], Path(sys.argv[2]).absolute()
program = graphopt.compile(source)
program.save(folder)
feeds = {value.name: np.ones(value.shape, np.float32) for value in program.lowered.inputs}
expected = program(**feeds)
compiler = shutil.which("cc")
if compiler is None:  # the bundle's Python module needs numpy alone
    outputs = runpy.run_path(str(folder / "model.py"))["load"](folder)(**feeds)
else:
    subprocess.run(
        [compiler, "-O2", "example.c", "-o", "example", "-L.", "-lmodel", "-lm", f"-Wl,-rpath,{folder}"],
        cwd=folder, check=True,
    )  # fmt: skip
    words = ["./example", "model.weights"]
    for name, array in feeds.items():
        array.tofile(folder / f"{name}.raw")
        words.append(f"{name}.raw")
    words += [f"{name}.raw" for name in expected]
    subprocess.run(words, cwd=folder, check=True)
    outputs = {name: np.fromfile(folder / f"{name}.raw", np.float32).reshape(a.shape) for name, a in expected.items()}
for name, array in expected.items():
    print(f"{name}: equal {np.array_equal(outputs[name], array)}")
