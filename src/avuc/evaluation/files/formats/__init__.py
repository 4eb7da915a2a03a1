"""One reader for each file format; each returns `RawScores`."""
