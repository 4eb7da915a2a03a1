"""The report of one prediction file."""
