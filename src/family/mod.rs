//! Model families: what a checkpoint's tower wants to see, and how it runs.
//!
//! A family answers questions and never runs a request: the encoder owns order, limits and failure.
