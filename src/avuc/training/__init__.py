"""The one fit loop, in small files: settings, one model's step, the captured step, checkpoints, logs, ranks."""
