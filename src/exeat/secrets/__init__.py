"""Credentials that a program uses without holding them: placeholders, substitution, redaction. No value is shown."""
