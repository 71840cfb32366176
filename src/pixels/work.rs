//! Work space that begins on a cache line, so that wide loads and stores do not straddle two.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line, and of the widest register.
const LINE: usize = 64;

/// A fixed number of elements, the first of which begins a cache line.
pub struct Work<T> {
    data: Vec<T>,
    start: usize,
}

impl<T: Copy> Work<T> {
    /// `length` times `value`.
    pub fn new(value: T, length: usize) -> Self {
        let data = vec![value; length + LINE.div_ceil(size_of::<T>())];
        // The vector never grows, so it stays where it is.
        let start = data.as_ptr().align_offset(LINE).min(data.len() - length);
        let mut data = data;
        data.truncate(start + length);
        Self { data, start }
    }
}

impl<T> Deref for Work<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data[self.start..]
    }
}

impl<T> DerefMut for Work<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.start..]
    }
}
