"""CIFAR ResNets that are trained as one network with a model axis."""
