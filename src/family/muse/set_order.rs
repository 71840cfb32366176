//! The order in which CPython iterates a set of pairs, which decides ties between grids.

/// Slots of a set of up to four items.
const SLOTS: usize = 8;

/// The pairs of one of `rows` with one of `columns`, each once, in the order of a set that they were put into row by
/// row.
pub fn set_order(rows: [u64; 2], columns: [u64; 2]) -> [Option<(u64, u64)>; SLOTS] {
    let mut slots = [None; SLOTS];
    for pair in rows.into_iter().flat_map(|r| columns.map(|c| (r, c))) {
        let mut perturb = hash(pair);
        let mut slot = perturb as usize % SLOTS;
        // Four pairs never fill eight slots, and the steps reach every slot.
        while slots[slot].is_some_and(|other| other != pair) {
            perturb >>= 5;
            slot = slot.wrapping_mul(5).wrapping_add(1).wrapping_add(perturb as usize) % SLOTS;
        }
        slots[slot] = Some(pair);
    }
    slots
}

/// CPython's hash of a pair of small integers, which are their own hashes: xxHash of two lanes.
fn hash((a, b): (u64, u64)) -> u64 {
    const PRIMES: (u64, u64, u64) =
        (11_400_714_785_074_694_791, 14_029_467_366_897_019_727, 2_870_177_450_012_600_261);
    let mut sum = PRIMES.2;
    for lane in [a, b] {
        sum = sum.wrapping_add(lane.wrapping_mul(PRIMES.1)).rotate_left(31).wrapping_mul(PRIMES.0);
    }
    match sum.wrapping_add(2 ^ (PRIMES.2 ^ 3_527_539)) {
        u64::MAX => 1_546_275_796,
        sum => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_cpython() {
        // hash((0, 0)), hash((3, 4)), hash((64, 65)) of CPython 3.11.
        assert_eq!(hash((0, 0)) as i64, -8_458_139_203_682_520_985);
        assert_eq!(hash((3, 4)) as i64, 1_079_245_023_883_434_373);
        assert_eq!(hash((64, 65)) as i64, 6_065_663_858_296_492_839);
    }

    #[test]
    fn every_pair_stands_once() {
        let found = |rows, columns| set_order(rows, columns).into_iter().flatten().count();
        assert_eq!((found([3, 4], [5, 6]), found([3, 3], [5, 6]), found([3, 3], [5, 5])), (4, 2, 1));
    }
}
