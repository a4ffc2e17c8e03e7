"""Tests of the model and of everything that holds a tensor."""
