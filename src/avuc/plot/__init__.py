"""Charts of predictions with matplotlib; each function takes `Predictions` and `ax=`, and returns the Axes."""

__all__: list[str] = []
