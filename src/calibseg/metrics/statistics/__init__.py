"""What metrics are computed from: statistics of one case, each gathered in one pass and added up exactly."""
