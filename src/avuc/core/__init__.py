"""What every room uses: errors, files, progress, arrays, sums over processes. Nothing here knows a model."""
