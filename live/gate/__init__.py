"""Gates: what engines must show before anything is measured on them."""
