"""What the SQL engine is measured by: attention alone, and the training step."""
