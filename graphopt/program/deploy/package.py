"""A file for pkg-config: what a program is compiled and linked with that uses the bundle."""

from __future__ import annotations

from kernels.emit.description import Description
from kernels.emit.version import ABI

_TEXT = """\
# SPDX-License-Identifier: Apache-2.0
# With PKG_CONFIG_PATH naming this folder:
#     cc main.c $(pkg-config --cflags --libs {name})
# and with the static library, into a program that needs no file but the weights:
#     cc main.c $(pkg-config --cflags {name}) -l:lib{name}.a $(pkg-config --libs --static {name})
prefix=${{pcfiledir}}

Name: {name}
Description: a compiled model, of which 'manifest.json' says more
Version: {abi}
Cflags: -I${{prefix}}
Libs: -L${{prefix}} -l{name} -Wl,-rpath,${{prefix}}
Libs.private: -lm
"""


def package(program: Description) -> str:
    """The text; its version is that of the interface."""
    return _TEXT.format(name=program.name, abi=ABI)
