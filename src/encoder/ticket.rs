//! A request's two ends: the caller holds the ticket, whoever answers holds the reply.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::item::{Encoded, Source};
use super::queue::Queue;
use super::shared::Landing;
use crate::{Error, Result};

/// Called once when the answer is there, on the thread that answers; it must be quick and not block.
pub type Waker = Box<dyn FnOnce() + Send>;

enum Answer {
    Awaited(Option<Waker>),
    Here(Result<Encoded>),
    Taken,
}

/// What both ends share.
struct Slot {
    answer: Mutex<Answer>,
    arrived: Condvar,
    /// Nobody waits any more.
    abandoned: AtomicBool,
    /// The wait for room is over. Set ahead of the queue's lock, and read under it.
    expired: AtomicBool,
}

impl Slot {
    fn answer(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that answers, once.
pub(super) struct Reply(Option<End>);

/// Who gets the answer.
enum End {
    Caller(Arc<Slot>),
    /// All who wait for the result of one picture, and the cache.
    Flight(Landing),
}

impl Reply {
    /// Whether nobody waits for the answer any more.
    pub fn abandoned(&self) -> bool {
        match &self.0 {
            None => true,
            Some(End::Caller(slot)) => slot.abandoned.load(Ordering::Relaxed),
            Some(End::Flight(landing)) => landing.deserted(),
        }
    }

    /// Answers. Where nobody waits any more, the answer is freed.
    pub fn send(mut self, answer: Result<Encoded>) {
        self.put(answer);
    }

    fn put(&mut self, answer: Result<Encoded>) {
        let slot = match self.0.take() {
            None => return,
            Some(End::Flight(landing)) => return landing.land(answer),
            Some(End::Caller(slot)) => slot,
        };
        if slot.abandoned.load(Ordering::Relaxed) {
            return;
        }
        let before = std::mem::replace(&mut *slot.answer(), Answer::Here(answer));
        slot.arrived.notify_all();
        if let Answer::Awaited(Some(waker)) = before {
            waker();
        }
    }

    /// Whether `ticket` is this reply's other end.
    pub fn belongs_to(&self, ticket: &Ticket) -> bool {
        matches!(&self.0, Some(End::Caller(slot)) if Arc::ptr_eq(slot, &ticket.slot))
    }

    /// Whether its caller still waits for an answer, but no longer for room.
    pub fn expired(&self) -> bool {
        let late =
            |slot: &Slot| slot.expired.load(Ordering::Relaxed) && !slot.abandoned.load(Ordering::Relaxed);
        matches!(&self.0, Some(End::Caller(slot)) if late(slot))
    }

    /// The reply of a computation that several may wait for.
    pub fn of_flight(landing: Landing) -> Self {
        Self(Some(End::Flight(landing)))
    }

    /// What leads to all who wait for one picture.
    pub fn landing(&self) -> Option<&Landing> {
        match &self.0 {
            Some(End::Flight(landing)) => Some(landing),
            _ => None,
        }
    }

    /// The reply of one caller for whom `is` holds, and whether others wait for this answer too; none if there is no
    /// such caller.
    pub fn leave(&mut self, is: &dyn Fn(&Self) -> bool) -> Option<(Self, bool)> {
        if is(self) {
            return Some((Self(self.0.take()), false));
        }
        let (reply, others) = self.landing()?.leave(is);
        reply.map(|reply| (reply, others))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.put(Err(Error::internal("the encoder's worker ended before it answered")));
    }
}

/// A request under way. Dropping it before the answer takes the request out of the queue; what runs already runs to
/// its end, and its result is freed.
pub struct Ticket {
    slot: Arc<Slot>,
    queue: Arc<Queue>,
    /// Kept here too, so that it is the caller's thread that frees it.
    _source: Option<Source>,
    process: u32,
}

impl Ticket {
    /// Both ends of a request to `queue`.
    pub(super) fn new(queue: Arc<Queue>, source: Option<Source>) -> (Self, Reply) {
        let slot = Arc::new(Slot {
            answer: Mutex::new(Answer::Awaited(None)),
            arrived: Condvar::new(),
            abandoned: AtomicBool::new(false),
            expired: AtomicBool::new(false),
        });
        let reply = Reply(Some(End::Caller(slot.clone())));
        (Self { slot, queue, _source: source, process: std::process::id() }, reply)
    }

    /// The answer, if it is there and was not taken before.
    pub fn take(&self) -> Option<Result<Encoded>> {
        let mut answer = self.slot.answer();
        match *answer {
            Answer::Here(_) => match std::mem::replace(&mut *answer, Answer::Taken) {
                Answer::Here(result) => Some(result),
                _ => None,
            },
            Answer::Awaited(_) => None,
            Answer::Taken => Some(Err(Error::argument("this request's answer was taken before"))),
        }
    }

    /// Waits at most `time` for the answer; none if it has not come.
    pub fn wait(&self, time: Duration) -> Option<Result<Encoded>> {
        let end = Instant::now() + time;
        let mut answer = self.slot.answer();
        while let Answer::Awaited(_) = *answer {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            answer = self.slot.arrived.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(answer);
        self.take()
    }

    /// Has `waker` called when the answer is there; at once if it is.
    pub fn on_answer(&self, waker: Waker) {
        let mut answer = self.slot.answer();
        if let Answer::Awaited(place) = &mut *answer {
            *place = Some(waker);
            return;
        }
        drop(answer);
        waker();
    }

    /// Ends the wait for room: a request that the queue has not let in yet is answered by
    /// [`QueueFull`](crate::ErrorKind::QueueFull), any other goes on.
    pub fn expire(&self) {
        if matches!(*self.slot.answer(), Answer::Awaited(_)) {
            // For an item that comes to the queue later: that of a flight this request joined.
            self.slot.expired.store(true, Ordering::Relaxed);
            self.queue.expire(self);
        }
    }

    /// Drops many requests that nobody waits for any more.
    pub fn abandon(tickets: Vec<Self>) {
        // All are marked before the first one's drop sweeps the queue; the others then find nothing to do.
        let waiting = tickets.iter().filter(|ticket| ticket.mark()).count();
        if let (1.., Some(first)) = (waiting, tickets.first()) {
            first.queue.sweep();
        }
    }

    /// Marks the request as abandoned; false if there is nothing to sweep for it.
    fn mark(&self) -> bool {
        // In a forked child the locks may be held for ever by threads that do not exist there.
        if std::process::id() != self.process || self.slot.abandoned.load(Ordering::Relaxed) {
            return false;
        }
        let answer = self.slot.answer();
        self.slot.abandoned.store(true, Ordering::Relaxed);
        matches!(*answer, Answer::Awaited(_))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.mark() {
            self.queue.sweep();
        }
    }
}
