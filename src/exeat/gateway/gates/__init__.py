"""What every request passes, in order, whichever door it came by."""
