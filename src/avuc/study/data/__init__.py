"""The data of a study: training, validation and test sets, shifted sets, other data."""
