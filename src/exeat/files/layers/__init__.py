"""Files that a command wrote: kept and shown."""
