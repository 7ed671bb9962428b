"""Pure functions on time-major [T, B] tensors. They depend on no network and no algorithm."""
