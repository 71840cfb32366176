//! How much may wait at once, counted in items, tokens and bytes.

use super::settings::Load;

/// What one item takes of the queue's room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Rows of its embeddings.
    pub tokens: usize,
    /// Bytes of its source and of its patch matrix, or of the levels that are held in its place.
    pub bytes: usize,
}

/// The room that waiting items take.
#[derive(Debug)]
pub struct Admission {
    bounds: Load,
    items: usize,
    tokens: usize,
    bytes: usize,
}

impl Admission {
    /// Nothing waits.
    pub fn new(bounds: Load) -> Self {
        Self { bounds, items: 0, tokens: 0, bytes: 0 }
    }

    /// Takes room for an item. One that is larger than all the room is let in when nothing else waits.
    pub fn enter(&mut self, cost: Cost) -> bool {
        let (tokens, bytes) =
            (self.tokens.saturating_add(cost.tokens), self.bytes.saturating_add(cost.bytes));
        let fits = self.items < self.bounds.queue_depth
            && tokens <= self.bounds.queue_tokens
            && bytes <= self.bounds.queue_bytes;
        if !fits && self.items > 0 {
            return false;
        }
        (self.items, self.tokens, self.bytes) = (self.items + 1, tokens, bytes);
        true
    }

    /// Gives back the room of an item that entered.
    pub fn leave(&mut self, cost: Cost) {
        self.items = self.items.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(cost.tokens);
        self.bytes = self.bytes.saturating_sub(cost.bytes);
    }

    /// Items, tokens and bytes that wait.
    pub fn waiting(&self) -> (usize, usize, usize) {
        (self.items, self.tokens, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(queue_depth: usize, queue_tokens: usize, queue_bytes: usize) -> Admission {
        Admission::new(Load { queue_depth, queue_tokens, queue_bytes, ..Load::default() })
    }

    #[test]
    fn each_of_the_three_bounds_holds() {
        let cost = Cost { tokens: 10, bytes: 100 };
        for mut admission in [room(2, 1000, 1000), room(9, 25, 1000), room(9, 1000, 299)] {
            assert!(admission.enter(cost) && admission.enter(cost));
            assert!(!admission.enter(cost));
            admission.leave(cost);
            assert!(admission.enter(cost));
            assert_eq!(admission.waiting(), (2, 20, 200));
        }
    }

    #[test]
    fn what_is_larger_than_all_room_waits_for_an_empty_queue() {
        let mut admission = room(8, 10, 10);
        let huge = Cost { tokens: usize::MAX, bytes: 11 };
        let small = Cost { tokens: 1, bytes: 1 };
        assert!(admission.enter(small));
        assert!(!admission.enter(huge));
        admission.leave(small);
        assert!(admission.enter(huge));
        assert!(!admission.enter(small));
        admission.leave(huge);
        assert_eq!(admission.waiting(), (0, 0, 0));
    }
}
