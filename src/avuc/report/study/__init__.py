"""The page of a study, for `avuc report`."""
