"""Hand-written kernels and the stacked ResNets; everything works without this folder."""
