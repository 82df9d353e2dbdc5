"""What makes a spec impossible, with the field, the value and the way out of each fault."""
