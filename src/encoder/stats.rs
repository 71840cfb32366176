//! What an encoder counts: outcomes, and the time in each stage as histograms.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::item::{STAGES, Times};
use super::queue::Lengths;
use crate::Error;

/// Buckets of a histogram: up to 1, 2, 4 ... 2^26 microseconds (67 s), and beyond.
const BUCKETS: usize = 28;

/// Times by powers of two.
#[derive(Default)]
struct Recorder {
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

impl Recorder {
    fn record(&self, time: Duration) {
        if let Some(bucket) = self.buckets.get(bucket(time)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn read(&self) -> Histogram {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Histogram { buckets, total: Duration::from_nanos(self.nanoseconds.load(Relaxed)) }
    }
}

/// The first bucket whose bound is no less than `time`.
fn bucket(time: Duration) -> usize {
    let microseconds = time.as_nanos().div_ceil(1000).max(1);
    ((microseconds - 1).checked_ilog2().map_or(0, |log| log as usize + 1)).min(BUCKETS - 1)
}

/// Times of one stage.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Items in each bucket; see [`Histogram::bounds`].
    pub buckets: Vec<u64>,
    /// Sum of all times.
    pub total: Duration,
}

impl Histogram {
    /// Upper bounds of the buckets, inclusive; the last has none.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (0..BUCKETS - 1).map(|power| Duration::from_micros(1 << power))
    }
}

/// What is counted while the encoder runs.
#[derive(Default)]
pub(super) struct Counters {
    completed: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    abandoned: AtomicU64,
    forwards: AtomicU64,
    graph_captures: AtomicU64,
    graph_replays: AtomicU64,
    graph_failures: AtomicU64,
    graph_drops: AtomicU64,
    graph_bytes: AtomicU64,
    graph_failure: Mutex<String>,
    stages: [Recorder; STAGES],
}

impl Counters {
    /// An item has its result.
    pub fn completed(&self, times: &Times) {
        self.completed.fetch_add(1, Relaxed);
        for (stage, (_, time)) in self.stages.iter().zip(times.stages()) {
            stage.record(time);
        }
    }

    /// An item has an error of its own.
    pub fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// An item found no room in its time.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Items were skipped, because nobody waited any more.
    pub fn abandoned(&self, items: usize) {
        if items > 0 {
            self.abandoned.fetch_add(items as u64, Relaxed);
        }
    }

    /// The tower ran once.
    pub fn forward(&self) {
        self.forwards.fetch_add(1, Relaxed);
    }

    /// A forward was captured; its graph holds so many bytes.
    pub fn graph_captured(&self, bytes: usize) {
        self.graph_captures.fetch_add(1, Relaxed);
        self.graph_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A forward was a graph's replay.
    pub fn graph_replayed(&self) {
        self.graph_replays.fetch_add(1, Relaxed);
    }

    /// A forward could not be captured or replayed.
    pub fn graph_failed(&self, error: &Error) {
        self.graph_failures.fetch_add(1, Relaxed);
        *self.graph_failure.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
    }

    /// A graph was freed.
    pub fn graph_dropped(&self, bytes: usize) {
        self.graph_drops.fetch_add(1, Relaxed);
        self.graph_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// All of it beside what waits now.
    pub fn read(&self, now: Lengths) -> Stats {
        Stats {
            now,
            completed: self.completed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            refused: self.refused.load(Relaxed),
            abandoned: self.abandoned.load(Relaxed),
            forwards: self.forwards.load(Relaxed),
            graph_captures: self.graph_captures.load(Relaxed),
            graph_replays: self.graph_replays.load(Relaxed),
            graph_failures: self.graph_failures.load(Relaxed),
            graph_drops: self.graph_drops.load(Relaxed),
            graph_bytes: self.graph_bytes.load(Relaxed),
            graph_failure: self.graph_failure.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            stages: Times::default()
                .stages()
                .into_iter()
                .zip(&self.stages)
                .map(|((name, _), times)| (name, times.read()))
                .collect(),
        }
    }
}

/// An encoder's counts at one moment.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Items at each place.
    pub now: Lengths,
    /// Items with a result.
    pub completed: u64,
    /// Items with an error of their own.
    pub failed: u64,
    /// Items refused because the queue was full for as long as they would wait.
    pub refused: u64,
    /// Items skipped before the tower because nobody waited any more.
    pub abandoned: u64,
    /// Runs of the tower, which are fewer than items where they share runs.
    pub forwards: u64,
    /// Forwards that were captured.
    pub graph_captures: u64,
    /// Forwards that were replays of a graph; the others were eager.
    pub graph_replays: u64,
    /// Captures and replays that failed, whose forwards were eager.
    pub graph_failures: u64,
    /// Graphs that were freed.
    pub graph_drops: u64,
    /// Device memory that graphs hold now.
    pub graph_bytes: u64,
    /// Why the last failure was; empty where there was none.
    pub graph_failure: String,
    /// Times of completed items, in the order they pass them.
    pub stages: Vec<(&'static str, Histogram)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_that_holds_it() {
        let bounds: Vec<Duration> = Histogram::bounds().collect();
        assert_eq!(bounds.len(), BUCKETS - 1);
        for (index, &bound) in bounds.iter().enumerate() {
            assert_eq!(bucket(bound), index);
            assert_eq!(bucket(bound + Duration::from_nanos(1)), index + 1);
        }
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn times_are_counted_by_stage() {
        let counters = Counters::default();
        let decode = Duration::from_micros(3);
        counters.completed(&Times { decode, ..Times::default() });
        counters.completed(&Times { decode, ..Times::default() });
        let stats = counters.read(Lengths::default());
        assert_eq!(stats.completed, 2);
        let (name, histogram) = &stats.stages[1];
        assert_eq!((*name, histogram.total), ("decode", 2 * decode));
        assert_eq!(histogram.buckets[2], 2);
        assert_eq!(histogram.buckets.iter().sum::<u64>(), 2);
    }
}
