"""Put a posterior and its calibrator into production: one module to export, and a calibrator that needs NumPy only."""

__all__: list[str] = []
