"""The processes around the command: builder and init."""
