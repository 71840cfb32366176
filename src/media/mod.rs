//! Encoded media: where bytes come from and what names them.

pub mod base64;
pub mod hash;
