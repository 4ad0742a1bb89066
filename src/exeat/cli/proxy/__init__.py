"""`exeat proxy`: sandboxes that are kept."""
