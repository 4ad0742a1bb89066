"""The gates that every request passes, in order, through every door."""
