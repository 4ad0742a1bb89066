"""`exeat proxy log`: from records to rows."""
