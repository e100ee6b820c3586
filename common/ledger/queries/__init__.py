"""What the ledger answers to those who only look; nothing here changes a row."""
