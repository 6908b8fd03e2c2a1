"""The schedule report: one record, shown in a terminal, as a page with a Gantt chart, as JSON and as a trace."""
