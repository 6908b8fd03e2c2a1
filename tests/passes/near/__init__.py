"""Near misses: a small graph in which a rule fires, and the same graph with one thing changed, again and again.

`graphs/RULE.txt` holds the graph, and a line for each change that gives a model which runs: the operators that the rule
leaves, or that it leaves the model alone. Whether a result is right no file says: each is run beside its model.
`pytest tests/passes/near --update-golden` writes the lines anew, for a rule that is changed on purpose.

The same graphs say what else a rule keeps: `why.txt` why passes leave nodes alone, `told.txt` what a rewrite tells in
the report and on its nodes, `limits.txt` the numbers up to which a rule looks or follows. Nothing is recorded of the
rest: other ranks and opsets give the same, a run may stop after any change, and a pass without news does nothing.
"""
