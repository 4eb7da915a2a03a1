"""CIFAR ResNets that train as one network with a model axis."""
