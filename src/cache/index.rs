//! Which entries a directory holds, their sizes, and the order in which they were used.

use std::collections::{BTreeMap, HashMap};

/// Names by recency, with the bytes of all.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: HashMap<u64, Slot>,
    /// The least recently used first.
    order: BTreeMap<u64, u64>,
    bytes: u64,
    turn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    bytes: u64,
    turn: u64,
}

impl Index {
    /// Whether there is an entry `hash`.
    pub fn contains(&self, hash: u64) -> bool {
        self.slots.contains_key(&hash)
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds or replaces an entry as the one used last.
    pub fn insert(&mut self, hash: u64, bytes: u64) {
        self.remove(hash);
        self.turn += 1;
        self.slots.insert(hash, Slot { bytes, turn: self.turn });
        self.order.insert(self.turn, hash);
        self.bytes += bytes;
    }

    /// Marks an entry as the one used last.
    pub fn touch(&mut self, hash: u64) {
        if let Some(slot) = self.slots.get_mut(&hash) {
            self.order.remove(&slot.turn);
            self.turn += 1;
            slot.turn = self.turn;
            self.order.insert(self.turn, hash);
        }
    }

    /// Takes an entry out; false if there was none.
    pub fn remove(&mut self, hash: u64) -> bool {
        let Some(slot) = self.slots.remove(&hash) else { return false };
        self.order.remove(&slot.turn);
        self.bytes -= slot.bytes;
        true
    }

    /// Takes out the least recently used entries until `bytes` more fit into `capacity`.
    pub fn make_room(&mut self, bytes: u64, capacity: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        while self.bytes.saturating_add(bytes) > capacity
            && let Some((_, &hash)) = self.order.first_key_value()
        {
            self.remove(hash);
            gone.push(hash);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_go_first() {
        let mut index = Index::default();
        (0..4).for_each(|hash| index.insert(hash, 10));
        index.touch(0);
        index.insert(1, 20);
        assert_eq!(index.bytes(), 50);
        assert_eq!(index.make_room(10, 50), [2]);
        assert_eq!(index.make_room(30, 50), [3, 0]);
        assert!(index.contains(1) && !index.contains(0));
        assert_eq!(index.make_room(60, 50), [1]);
        assert_eq!((index.bytes(), index.order.len()), (0, 0));
        assert!(!index.remove(1));
    }
}
