"""Networks, their weights as bytes, and the number format that they compute in."""
