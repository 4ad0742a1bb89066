"""Credentials that a program uses without holding them: placeholders, substitution, redaction. Shows no value."""
