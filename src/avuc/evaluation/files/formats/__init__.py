"""Readers of .csv, .parquet and files of arrays; each returns `RawScores`."""
