"""The passes, one family a file; `pipeline` holds their order."""
