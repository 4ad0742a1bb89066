"""Files in a shared folder that programs outside would run later."""
