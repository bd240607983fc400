"""The road in order: prepare, train, predict, score, calibrate. Each reads files, does one thing, writes files."""
