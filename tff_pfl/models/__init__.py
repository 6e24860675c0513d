"""Models: pure functions of named weights, made from any Keras model."""
