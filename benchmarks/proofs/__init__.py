"""What ``on_gpu.py`` proves on real cards, one module a part."""
