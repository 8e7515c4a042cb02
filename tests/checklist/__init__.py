"""What an operator that users love must do, each row by a command that fails if it does not."""
