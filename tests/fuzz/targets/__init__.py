"""What is fuzzed, by kind."""
