"""Try the user's code on one batch before anything is trained, so that a mistake costs seconds."""
