"""The memory report: one record, shown in a terminal, as a page, as JSON and as a trace."""
