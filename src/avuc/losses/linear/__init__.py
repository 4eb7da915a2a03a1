"""Losses of a linear layer, from its inputs (hidden states) and weight, without ever holding all logits."""
