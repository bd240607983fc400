"""Rules that were fitted: made from cases, applied to cases, kept in a file."""
