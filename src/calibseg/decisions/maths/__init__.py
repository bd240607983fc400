"""What the decisions share: thresholds, one pass over a case, and finite-sample guarantees."""
