"""Run a study: in this process, in one process for each device, or on a Ray cluster."""
