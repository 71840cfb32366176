//! The last few rows of an intermediate image, so that it never leaves the cache.

use crate::pixels::work::Work;

/// Rows addressed by their absolute index; row `k` overwrites row `k - capacity`.
pub struct Ring<T> {
    stride: usize,
    capacity: usize,
    data: Work<T>,
}

impl<T: Copy + Default> Ring<T> {
    /// A ring of `capacity` rows of `stride` elements each.
    pub fn new(capacity: usize, stride: usize) -> Self {
        Self { stride, capacity, data: Work::new(T::default(), capacity * stride) }
    }

    /// Row `k`.
    pub fn row(&self, k: usize) -> &[T] {
        &self.data[k % self.capacity * self.stride..][..self.stride]
    }

    /// Rows `k..k + count`, to be written. `k` and the capacity are multiples of `count`, so that they lie together.
    pub fn rows_mut(&mut self, k: usize, count: usize) -> &mut [T] {
        &mut self.data[k % self.capacity * self.stride..][..count * self.stride]
    }
}
