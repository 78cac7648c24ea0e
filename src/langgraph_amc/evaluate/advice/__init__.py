"""The advisor: from a pilot or from logs, whether AMC will beat best-of-N, by how much, at what cost, and why."""
