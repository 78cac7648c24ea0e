"""Learning V from stored runs: a transformer (`transformer`) or a linear model of text features (`text_features`)."""
