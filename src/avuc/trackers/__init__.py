"""Send the epochs of `fit` to TensorBoard, MLflow or Weights & Biases."""

__all__: list[str] = []
