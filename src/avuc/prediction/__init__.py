"""From a posterior and images to `Predictions`."""
