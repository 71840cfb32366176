//! Checkpoint folders: configuration files and memory-mapped weights.
