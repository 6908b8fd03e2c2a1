"""What the commands report: records with a schema name, as JSON and as tables for people."""
