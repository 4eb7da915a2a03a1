"""What the numbers of a file mean: layout, order of the classes, logits or probabilities."""
