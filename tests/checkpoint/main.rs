//! Checkpoint folders: what is read, what is refused, and what is never touched.

mod config;
mod demo;
mod folder;
mod hostile;
mod weights;
