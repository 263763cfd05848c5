"""The Flower app that the test of a deployment runs."""
