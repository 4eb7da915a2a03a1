"""The page of one prediction file, for `avuc evaluate --report` and `avuc calibrate --report`."""
