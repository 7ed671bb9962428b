"""Pure functions on time-major [T, B] tensors. They know nothing of networks or algorithms."""
