"""LLVM: functions written as text, compiled to objects, loaded into the process or linked into a library."""
