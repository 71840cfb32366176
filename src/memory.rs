//! A global allocator that keeps large blocks for the next item.
//!
//! Pixel buffers and patch matrices have 10 to 300 MB. Fresh from the system, the first touch of their pages costs more
//! than all the arithmetic that fills them, so blocks are mapped with huge pages, and one that is freed is kept for
//! the next item of its size, or of down to half of it. What is kept and what is in use together never exceed what
//! was once in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Blocks from this many bytes on are ours; smaller ones are the system allocator's, which reuses them itself.
const LARGE: usize = 4 << 20;
/// Most bytes that are kept.
const MAX_KEPT: usize = 512 << 20;
/// Most blocks that are kept.
const MAX_BLOCKS: usize = 128;
/// Alignment of blocks: the size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Most blocks that may be lent to smaller items at a time.
const MAX_LENT: usize = 64;
/// A block is lent to items of at least its size divided by this.
const MAX_WASTE: usize = 2;
/// How often a lock is tried. In a forked child it may never open; then nothing is kept.
const TRIES: usize = 1000;

/// The system's allocator, with large blocks kept. For `#[global_allocator]`.
pub struct LargeBlocks;

/// A block that nobody uses: address and size.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    size: usize,
}

/// Accounts and the kept blocks, the oldest first.
struct Kept {
    in_use: usize,
    most_in_use: usize,
    bytes: usize,
    count: usize,
    blocks: [Block; MAX_BLOCKS],
}

/// Blocks in use that are larger than their items' layouts tell. Read without the lock, because whoever gives such a
/// block back must learn its size even where the lock does not open. A start of 0 is a free place; places are filled
/// under the lock.
static LENT: [Lent; MAX_LENT] =
    [const { Lent { start: AtomicUsize::new(0), size: AtomicUsize::new(0) } }; MAX_LENT];

struct Lent {
    start: AtomicUsize,
    size: AtomicUsize,
}

/// Forgets that the block at `start` was lent, if it was, and gives its whole size.
///
/// Its entry was written before the block was handed out, so whoever holds the block sees it.
fn returned(start: usize) -> Option<usize> {
    let lent = LENT.iter().find(|lent| lent.start.load(Ordering::Relaxed) == start)?;
    let size = lent.size.load(Ordering::Relaxed);
    lent.start.store(0, Ordering::Release);
    Some(size)
}

static KEPT: Mutex<Kept> = Mutex::new(Kept::new());

impl Kept {
    const fn new() -> Self {
        Self {
            in_use: 0,
            most_in_use: 0,
            bytes: 0,
            count: 0,
            blocks: [Block { start: 0, size: 0 }; MAX_BLOCKS],
        }
    }

    fn remove(&mut self, index: usize) -> Block {
        let block = self.blocks[index];
        self.blocks.copy_within(index + 1..self.count, index);
        self.count -= 1;
        self.bytes -= block.size;
        block
    }

    /// Takes the newest block of `size`, else the smallest larger one that may be lent, and counts it as in use; where
    /// there is none, `size` bytes, which the caller is to map.
    fn take(&mut self, size: usize) -> Option<Block> {
        let exact = self.blocks[..self.count].iter().rposition(|block| block.size == size);
        let found = match exact {
            Some(index) => Some(self.remove(index)),
            None => self.lend(size),
        };
        self.in_use += found.map_or(size, |block| block.size);
        self.most_in_use = self.most_in_use.max(self.in_use);
        found
    }

    /// Lends a block above `size`, if there is one and its size can be noted.
    fn lend(&mut self, size: usize) -> Option<Block> {
        let place = LENT.iter().find(|lent| lent.start.load(Ordering::Acquire) == 0)?;
        let block = self.larger(size).map(|index| self.remove(index))?;
        place.size.store(block.size, Ordering::Relaxed);
        place.start.store(block.start, Ordering::Relaxed);
        Some(block)
    }

    /// The smallest block above `size` that may be lent for it.
    fn larger(&self, size: usize) -> Option<usize> {
        let blocks = self.blocks[..self.count].iter().enumerate();
        let suitable = blocks.filter(|(_, block)| block.size > size && block.size / MAX_WASTE <= size);
        suitable.min_by_key(|(_, block)| block.size).map(|(index, _)| index)
    }

    /// Keeps a block that was in use.
    fn put(&mut self, block: Block) -> Option<Block> {
        self.in_use = self.in_use.saturating_sub(block.size);
        let displaced = (self.count == MAX_BLOCKS).then(|| self.remove(0));
        self.blocks[self.count] = block;
        self.count += 1;
        self.bytes += block.size;
        displaced
    }

    /// The oldest block, if more is kept than should be.
    fn surplus(&mut self) -> Option<Block> {
        let over = self.bytes > MAX_KEPT || self.in_use + self.bytes > self.most_in_use;
        (over && self.count > 0).then(|| self.remove(0))
    }
}

fn kept() -> Option<MutexGuard<'static, Kept>> {
    for _ in 0..TRIES {
        match KEPT.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// The size of the block for `bytes` bytes: one of eight an octave, so that items of about one size share blocks.
fn block_size(bytes: usize) -> Option<usize> {
    let step = ((1 << bytes.ilog2()) / 8).max(HUGE_PAGE);
    bytes.checked_next_multiple_of(step)
}

/// Hands back to the system what is kept beyond the limits.
fn trim() {
    while let Some(block) = kept().and_then(|mut kept| kept.surplus()) {
        system::unmap(block.start, block.size);
    }
}

/// A block for `bytes` bytes and whether it is known to be zero; null if the system has none.
fn allocate(bytes: usize) -> (*mut u8, bool) {
    let Some(size) = block_size(bytes) else { return (std::ptr::null_mut(), false) };
    match kept().and_then(|mut kept| kept.take(size)) {
        Some(block) => (std::ptr::with_exposed_provenance_mut(block.start), false),
        None => {
            trim();
            (system::map(size), true)
        }
    }
}

fn free(start: *mut u8, bytes: usize) {
    let start = start.expose_provenance();
    let Some(size) = returned(start).or_else(|| block_size(bytes)) else { return };
    let block = Block { start, size };
    let displaced = match kept() {
        Some(mut kept) => kept.put(block),
        None => Some(block),
    };
    if let Some(block) = displaced {
        system::unmap(block.start, block.size);
    }
    trim();
}

fn is_large(layout: Layout) -> bool {
    cfg!(target_os = "linux") && layout.size() >= LARGE && layout.align() <= HUGE_PAGE
}

// SAFETY: small requests go to the system's allocator. A large one gets a mapping, or a kept one, of at least its size
// and of its alignment, that no one else uses; its size follows from the layout alone, so that `dealloc` knows it.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return allocate(layout.size()).0;
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let (start, zero) = allocate(layout.size());
        if !zero && !start.is_null() {
            // SAFETY: the block has at least this size.
            unsafe { start.write_bytes(0, layout.size()) };
        }
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if is_large(layout) {
            return free(start, layout.size());
        }
        // SAFETY: the caller's promise; such a layout was the system allocator's from the start.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            // SAFETY: the caller's promise.
            (false, false) => unsafe { System.realloc(start, layout, size) },
            (true, true) if block_size(layout.size()) == block_size(size) => start,
            _ => {
                // SAFETY: both blocks have at least the bytes that are copied, and are distinct.
                unsafe {
                    let fresh = self.alloc(wanted);
                    if !fresh.is_null() {
                        fresh.copy_from_nonoverlapping(start, layout.size().min(size));
                        self.dealloc(start, layout);
                    }
                    fresh
                }
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::HUGE_PAGE;

    /// `size` zero bytes at a multiple of a huge page; null if there is no room. `size` is a multiple too.
    pub fn map(size: usize) -> *mut u8 {
        let Some(room) = size.checked_add(HUGE_PAGE) else { return std::ptr::null_mut() };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping, at an address of the system's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), room, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return std::ptr::null_mut();
        }
        let start = start.cast::<u8>();
        let skipped = start.align_offset(HUGE_PAGE);
        let aligned = start.wrapping_add(skipped);
        unmap(start.expose_provenance(), skipped);
        unmap(aligned.expose_provenance() + size, HUGE_PAGE - skipped);
        // SAFETY: the advice concerns the new mapping only. Where it is not heeded, nothing changes.
        unsafe { libc::madvise(aligned.cast(), size, libc::MADV_HUGEPAGE) };
        aligned
    }

    /// Hands back pages that nobody uses.
    pub fn unmap(start: usize, size: usize) {
        if size > 0 {
            // SAFETY: the pages were mapped by `map`, and their owner has given them up.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(start), size) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn map(_size: usize) -> *mut u8 {
        std::ptr::null_mut()
    }

    pub fn unmap(_start: usize, _size: usize) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).unwrap()
    }

    #[test]
    fn sizes_are_eight_an_octave() {
        assert_eq!(block_size(LARGE), Some(4 << 20));
        assert_eq!(block_size((4 << 20) + 1), Some(6 << 20));
        assert_eq!(block_size(100 << 20), Some(104 << 20));
        assert_eq!(block_size((1 << 30) + 1), Some((1 << 30) + (128 << 20)));
        assert_eq!(block_size(usize::MAX), None);
    }

    #[test]
    fn blocks_come_back_zeroed_when_asked_and_keep_their_content_when_grown() {
        let (first, second) = (layout(40_000_001), layout(40_500_000));
        // SAFETY: each block is used within its size and freed once, with its layout.
        unsafe {
            let start = LargeBlocks.alloc(first);
            assert_eq!(start.align_offset(HUGE_PAGE), 0);
            start.write_bytes(7, first.size());
            LargeBlocks.dealloc(start, first);
            let again = LargeBlocks.alloc_zeroed(second);
            assert!(std::slice::from_raw_parts(again, second.size()).iter().all(|&byte| byte == 0));
            again.write(9);
            let grown = LargeBlocks.realloc(again, second, 90_000_000);
            assert_eq!((grown.read(), grown.add(1).read()), (9, 0));
            let small = LargeBlocks.realloc(grown, layout(90_000_000), 1000);
            assert_eq!(small.read(), 9);
            LargeBlocks.dealloc(small, layout(1000));
        }
    }

    #[test]
    fn kept_and_used_never_exceed_what_was_used() {
        let mut kept = Kept::new();
        let block = |start, size| Block { start, size };
        assert!(kept.take(10).is_none());
        assert!(kept.take(50).is_none());
        assert!(kept.put(block(1, 10)).is_none());
        assert!(kept.put(block(2, 50)).is_none());
        assert!(kept.surplus().is_none());
        // 20 in use beside 60 kept would be more than the 60 that were in use: the oldest goes, then the next.
        assert!(kept.take(20).is_none());
        assert_eq!(kept.surplus().map(|block| block.start), Some(1));
        assert_eq!(kept.surplus().map(|block| block.start), Some(2));
        assert!(kept.surplus().is_none());
        assert!(kept.put(block(3, 20)).is_none());
        assert_eq!(kept.take(20).map(|block| block.start), Some(3));
    }

    #[test]
    fn a_block_is_lent_to_items_of_half_its_size_and_comes_back_whole() {
        let mut kept = Kept::new();
        let block = |start, size| Block { start, size };
        for (start, size) in [(1, 40), (2, 50)] {
            assert!(kept.take(size).is_none());
            assert!(kept.put(block(start, size)).is_none());
        }
        assert!(kept.surplus().is_some_and(|block| block.start == 1));
        assert!(kept.take(24).is_none());
        assert_eq!(kept.surplus().map(|block| block.start), Some(2));
        assert!(kept.put(block(3, 48)).is_none());
        let lent = kept.take(24).expect("twice the size");
        assert_eq!((lent.start, kept.in_use), (3, 48));
        assert_eq!((returned(3), returned(3)), (Some(48), None));
        assert!(kept.put(block(3, 48)).is_none());
        assert_eq!(kept.take(48).map(|block| block.start), Some(3));
    }
}
