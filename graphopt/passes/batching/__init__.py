"""Batching: operators of one type that do not depend on each other become one operator over more rows."""
