//! The one door to LibTorch.
