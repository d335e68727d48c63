"""What a person reads after a load run: files, terminal table, one page, and an exchange format."""
