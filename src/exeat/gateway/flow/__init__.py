"""How bytes move once everything is decided."""
