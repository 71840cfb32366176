//! Requests for the same picture at the same time: the first is computed, the others wait for its result.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::key::Key;

/// One who waits for a result and may give up.
pub trait Waiting {
    /// Whether nobody waits at this end any more.
    fn gave_up(&self) -> bool;
}

/// Who waits for which result under way.
pub struct Flights<W> {
    table: Mutex<Table<W>>,
}

struct Table<W> {
    under_way: HashMap<Key, Flight<W>>,
    last: u64,
}

struct Flight<W> {
    number: u64,
    waiting: Vec<W>,
}

/// A computation under way, of which there is one at most for a key.
#[derive(Clone, Copy, Debug)]
pub struct FlightId {
    /// What is computed.
    pub key: Key,
    number: u64,
}

impl<W> Default for Flights<W> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { under_way: HashMap::new(), last: 0 }) }
    }
}

impl<W: Waiting> Flights<W> {
    fn table(&self) -> MutexGuard<'_, Table<W>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `one` wait for the result of `key`. The first gets an id, with which to compute and [`Flights::land`].
    pub fn board(&self, key: Key, one: W) -> Option<FlightId> {
        let mut table = self.table();
        if let Some(flight) = table.under_way.get_mut(&key) {
            flight.waiting.push(one);
            return None;
        }
        table.last += 1;
        let number = table.last;
        table.under_way.insert(key, Flight { number, waiting: vec![one] });
        Some(FlightId { key, number })
    }

    /// Whether nobody waits for this result any more. From then on nobody can: the next request begins anew.
    pub fn deserted(&self, id: &FlightId) -> bool {
        let mut table = self.table();
        let Some(flight) = table.under_way.get(&id.key).filter(|flight| flight.number == id.number) else {
            return true;
        };
        if !flight.waiting.iter().all(Waiting::gave_up) {
            return false;
        }
        let flight = table.under_way.remove(&id.key);
        drop(table);
        drop(flight);
        true
    }

    /// Takes out one whom `is` knows, and says whether others still wait; if not, the flight is over.
    pub fn leave(&self, id: &FlightId, is: impl Fn(&W) -> bool) -> (Option<W>, bool) {
        let mut table = self.table();
        let Some(flight) = table.under_way.get_mut(&id.key).filter(|flight| flight.number == id.number)
        else {
            return (None, false);
        };
        let place = flight.waiting.iter().position(is);
        let left = place.map(|place| flight.waiting.remove(place));
        let others = flight.waiting.iter().any(|one| !one.gave_up());
        let over = if others || left.is_none() { None } else { table.under_way.remove(&id.key) };
        drop(table);
        drop(over);
        (left, others)
    }

    /// Ends a flight and gives all who wait for its result.
    pub fn land(&self, id: &FlightId) -> Vec<W> {
        let mut table = self.table();
        match table.under_way.get(&id.key) {
            Some(flight) if flight.number == id.number => {
                table.under_way.remove(&id.key).map_or_else(Vec::new, |flight| flight.waiting)
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    struct One(Rc<Cell<bool>>);

    impl Waiting for One {
        fn gave_up(&self) -> bool {
            self.0.get()
        }
    }

    fn one() -> (One, Rc<Cell<bool>>) {
        let gave_up = Rc::new(Cell::new(false));
        (One(gave_up.clone()), gave_up)
    }

    #[test]
    fn the_first_computes_and_all_land() {
        let flights = Flights::default();
        let (key, other) = (Key([1; 32]), Key([2; 32]));
        let id = flights.board(key, one().0).expect("the first");
        assert!(flights.board(key, one().0).is_none());
        assert!(flights.board(other, one().0).is_some());
        assert_eq!(flights.land(&id).len(), 2);
        assert!(flights.land(&id).is_empty());
        assert!(flights.board(key, one().0).is_some());
    }

    #[test]
    fn a_flight_goes_on_until_the_last_gives_up() {
        let flights = Flights::default();
        let key = Key([1; 32]);
        let ((first, first_left), (second, second_left)) = (one(), one());
        let id = flights.board(key, first).expect("the first");
        assert!(flights.board(key, second).is_none());
        first_left.set(true);
        assert!(!flights.deserted(&id));
        second_left.set(true);
        assert!(flights.deserted(&id));
        // A new request is a flight of its own, which the old one's end does not touch.
        let next = flights.board(key, one().0).expect("anew");
        assert!(flights.land(&id).is_empty() && flights.deserted(&id));
        assert!(!flights.deserted(&next));
        assert_eq!(flights.land(&next).len(), 1);
    }

    #[test]
    fn one_who_leaves_does_not_end_it_for_others() {
        let flights = Flights::default();
        let key = Key([1; 32]);
        let ((first, first_left), (second, second_left)) = (one(), one());
        let id = flights.board(key, first).expect("the first");
        assert!(flights.board(key, second).is_none());
        let is = |of: &Rc<Cell<bool>>| {
            let of = of.clone();
            move |one: &One| Rc::ptr_eq(&one.0, &of)
        };
        assert!(matches!(flights.leave(&id, is(&first_left)), (Some(_), true)));
        assert!(matches!(flights.leave(&id, is(&first_left)), (None, true)));
        assert!(!flights.deserted(&id));
        assert!(matches!(flights.leave(&id, is(&second_left)), (Some(_), false)));
        assert!(flights.deserted(&id) && flights.land(&id).is_empty());
    }
}
