"""Tests of whether a reconstruction identifies its record among others of its class."""
