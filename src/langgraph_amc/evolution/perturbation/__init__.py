"""How a running model computes with perturbed weights: where its parameters act, factors, and rows of a batch."""
