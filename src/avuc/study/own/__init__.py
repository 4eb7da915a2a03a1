"""What the user brings to a study: functions by import path, objects from Python, files of sentences."""
