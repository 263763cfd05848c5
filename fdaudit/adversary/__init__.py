"""What an attack may know: view, knowledge, oracle."""
