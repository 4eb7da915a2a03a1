"""One model on one data set: predictions, metrics, conformal sets, and examples for the report."""
