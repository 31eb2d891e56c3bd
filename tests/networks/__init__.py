"""Networks as other people write them, and that they run on moments without a change."""
