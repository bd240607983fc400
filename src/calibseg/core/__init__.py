"""What every room stands on: types, registry, labels, options, files, exact sums. Imports no other room."""
