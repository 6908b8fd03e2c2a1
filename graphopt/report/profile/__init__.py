"""The profile of a program: one record, shown in a terminal, as a page with its workers over time, and as a trace."""
