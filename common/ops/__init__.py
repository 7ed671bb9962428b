"""Pure functions on time-major [T, B] tensors. They know no network and no algorithm."""
