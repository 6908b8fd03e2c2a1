"""Functions of vectors, written as instructions: no call, no table, as many vectors side by side as a value has parts.

Each takes the function that is being written and a value of f32, in any number of lanes, and says in its docstring how
far it may be from the exact result, in units in the last place (ULP) of the exact result rounded to f32. Kernels run
under a control word that flushes (kernels/llvm/control_word.py): a subnormal argument may count as zero, a subnormal
result may be zero. NaN gives NaN, and the sign of a zero is kept. The coefficients are our own minimax fits of relative
error (Lawson's reweighted least squares in extended precision, and Remez' exchanges in 160 bits). Functions of f64
are in double.py, or the C library's, lane by lane.
"""
