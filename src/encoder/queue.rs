//! Where items wait: for room, for preprocessing, for the tower.
//!
//! One lock guards it all. It is held for the moving of items only: answers are sent and memory is freed after it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::admission::Admission;
use super::item::{Item, Work};
use super::settings::Load;
use super::stats::Counters;
use super::ticket::{Reply, Ticket};
use crate::Error;

/// The places of waiting items, each in order of arrival there.
pub(super) struct Queue {
    state: Mutex<State>,
    /// Something to prepare has come, or nothing will come any more.
    to_prepare: Condvar,
    /// The same for the tower.
    to_run: Condvar,
    load: Load,
    counters: Counters,
}

struct State {
    /// Room that all items in `raw`, `ready` and in preprocessing take.
    room: Admission,
    /// Not let in yet.
    outside: VecDeque<Item>,
    /// To be prepared.
    raw: VecDeque<Item>,
    /// To be run.
    ready: VecDeque<Item>,
    /// To be run by one replica and no other, beside the queue.
    lanes: Vec<VecDeque<Item>>,
    preparing: usize,
    running: usize,
    closed: bool,
}

/// Items at each place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Beyond the queue's bounds: their callers wait for room.
    pub outside: usize,
    /// In the queue: to be prepared, in preprocessing, or to be run.
    pub queued: usize,
    /// Of those, in preprocessing.
    pub preparing: usize,
    /// In the tower.
    pub running: usize,
    /// Tokens of the items in the queue.
    pub tokens: usize,
    /// Bytes of the sources and patch matrices in the queue.
    pub bytes: usize,
}

impl State {
    /// Nothing waits for the tower and nothing that was let in can come.
    fn drained(&self) -> bool {
        self.closed && self.raw.is_empty() && self.preparing == 0 && self.ready.is_empty()
    }

    /// Takes items nobody waits for out of the queue and gives their room back.
    fn sweep(&mut self, gone: &mut Vec<Item>) {
        let Self { room, outside, raw, ready, .. } = self;
        for (line, inside) in [(outside, false), (raw, true), (ready, true)] {
            if !line.iter().any(|item| item.reply.abandoned()) {
                continue;
            }
            for item in std::mem::take(line) {
                if !item.reply.abandoned() {
                    line.push_back(item);
                    continue;
                }
                if inside {
                    room.leave(item.cost);
                }
                gone.push(item);
            }
        }
    }

    /// The next items for one forward: the first, and those behind it that fit beside it.
    fn batch(&mut self, load: &Load, gone: &mut Vec<Item>) -> Vec<Item> {
        let mut batch: Vec<Item> = Vec::new();
        let (mut images, mut tokens) = (0, 0);
        while let Some(next) = self.ready.front() {
            if !next.reply.abandoned() {
                images += next.grids.len();
                tokens += next.tokens();
                if !batch.is_empty() && (images > load.batch_images || tokens > load.batch_tokens) {
                    break;
                }
            }
            let Some(item) = self.ready.pop_front() else { break };
            self.room.leave(item.cost);
            if item.reply.abandoned() { gone.push(item) } else { batch.push(item) }
        }
        batch
    }
}

impl Queue {
    /// An empty queue.
    pub fn new(load: Load, counters: Counters) -> Self {
        let state = State {
            room: Admission::new(load),
            outside: VecDeque::new(),
            raw: VecDeque::new(),
            ready: VecDeque::new(),
            lanes: (0..load.replicas).map(|_| VecDeque::new()).collect(),
            preparing: 0,
            running: 0,
            closed: false,
        };
        Self { state: Mutex::new(state), to_prepare: Condvar::new(), to_run: Condvar::new(), load, counters }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How much runs and waits at once.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// How much waits where.
    pub fn lengths(&self) -> Lengths {
        let state = self.state();
        let (queued, tokens, bytes) = state.room.waiting();
        let State { outside, preparing, running, .. } = &*state;
        Lengths { outside: outside.len(), queued, preparing: *preparing, running: *running, tokens, bytes }
    }

    /// Puts an item at its place, outside where there is no room. A closed queue answers it at once.
    pub fn push(&self, item: Item) {
        let mut gone = Vec::new();
        let mut state = self.state();
        if state.closed {
            drop(state);
            return item.reply.send(Err(closed()));
        }
        state.outside.push_back(item);
        self.let_in(&mut state, &mut gone);
        // If it was not let in, it is the last one. Who joined its flight may have expired before it came here.
        let (mut late, mut deserted) = (Vec::new(), None);
        while let Some(item) = state.outside.back_mut()
            && let Some((reply, others)) = item.reply.leave(&Reply::expired)
        {
            late.push((reply, self.full(&state)));
            if !others {
                deserted = state.outside.pop_back();
                break;
            }
        }
        drop(state);
        drop(deserted);
        self.counters.abandoned(gone.len());
        late.into_iter().for_each(|(reply, full)| self.refuse(reply, full));
    }

    /// Lets in from outside what there is room for.
    fn let_in(&self, state: &mut State, gone: &mut Vec<Item>) {
        while let Some(first) = state.outside.front() {
            let abandoned = first.reply.abandoned();
            if !abandoned && !state.room.enter(first.cost) {
                return;
            }
            let Some(item) = state.outside.pop_front() else { return };
            if abandoned {
                gone.push(item);
                continue;
            }
            match item.work {
                Work::Source(..) => {
                    state.raw.push_back(item);
                    self.to_prepare.notify_one();
                }
                Work::Pixels(_) => {
                    state.ready.push_back(item);
                    self.to_run.notify_one();
                }
            }
        }
    }

    /// Puts a prepared item before one replica, beside all bounds. False if the queue is closed.
    pub fn push_to(&self, replica: usize, item: Item) -> bool {
        let mut state = self.state();
        let open = !state.closed;
        match state.lanes.get_mut(replica) {
            Some(lane) if open => lane.push_back(item),
            _ => return false,
        }
        self.to_run.notify_all();
        true
    }

    /// Waits for an item to prepare, to be given back by [`Queue::prepared`] or [`Queue::unprepared`]; none when the
    /// queue is closed and empty.
    pub fn next_to_prepare(&self) -> Option<Item> {
        let mut gone = Vec::new();
        let mut state = self.state();
        let next = loop {
            match state.raw.pop_front() {
                Some(item) if item.reply.abandoned() => {
                    state.room.leave(item.cost);
                    gone.push(item);
                }
                Some(item) => {
                    state.preparing += 1;
                    break Some(item);
                }
                None if state.closed => break None,
                None => state = self.to_prepare.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        self.let_in(&mut state, &mut gone);
        if state.drained() {
            self.to_run.notify_all();
        }
        drop(state);
        self.counters.abandoned(gone.len());
        next
    }

    /// An item is ready for the tower, unless nobody waits for it any more.
    pub fn prepared(&self, mut item: Item) {
        item.since = Instant::now();
        let mut gone = Vec::new();
        let mut state = self.state();
        state.preparing -= 1;
        if item.reply.abandoned() {
            state.room.leave(item.cost);
            gone.push(item);
            self.let_in(&mut state, &mut gone);
        } else {
            state.ready.push_back(item);
        }
        if state.closed {
            // Every worker looks whether it was the last.
            self.to_run.notify_all();
        } else {
            self.to_run.notify_one();
        }
        drop(state);
        self.counters.abandoned(gone.len());
    }

    /// An item could not be prepared, and is answered by its preparer.
    pub fn unprepared(&self, item: &Item) {
        let mut gone = Vec::new();
        let mut state = self.state();
        state.preparing -= 1;
        state.room.leave(item.cost);
        self.let_in(&mut state, &mut gone);
        if state.drained() {
            self.to_run.notify_all();
        }
        drop(state);
        self.counters.abandoned(gone.len());
    }

    /// Waits for items that `replica` runs in one forward, to be given back by [`Queue::ran`]; none when the queue is
    /// closed and empty.
    pub fn next_batch(&self, replica: usize) -> Option<Vec<Item>> {
        let mut gone = Vec::new();
        let mut state = self.state();
        let batch = loop {
            if let Some(item) = state.lanes.get_mut(replica).and_then(VecDeque::pop_front) {
                break Some(vec![item]);
            }
            let batch = state.batch(&self.load, &mut gone);
            self.let_in(&mut state, &mut gone);
            if !batch.is_empty() {
                break Some(batch);
            }
            if state.drained() {
                break None;
            }
            state = self.to_run.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.running += batch.as_ref().map_or(0, Vec::len);
        if state.drained() {
            self.to_run.notify_all();
        }
        drop(state);
        self.counters.abandoned(gone.len());
        batch
    }

    /// `items` left the tower.
    pub fn ran(&self, items: usize) {
        self.state().running -= items;
    }

    /// Takes out what nobody waits for any more.
    pub fn sweep(&self) {
        let mut gone = Vec::new();
        let mut state = self.state();
        state.sweep(&mut gone);
        self.let_in(&mut state, &mut gone);
        if state.drained() {
            self.to_run.notify_all();
        }
        drop(state);
        self.counters.abandoned(gone.len());
    }

    /// Refuses the request of `ticket` if it still waits outside.
    pub fn expire(&self, ticket: &Ticket) {
        let mut state = self.state();
        let found = state.outside.iter_mut().enumerate().find_map(|(place, item)| {
            let left = item.reply.leave(&|reply| reply.belongs_to(ticket));
            left.map(|(reply, others)| (place, reply, others))
        });
        let Some((place, reply, others)) = found else { return };
        // An item that others wait for stays.
        let gone = if others { None } else { state.outside.remove(place) };
        let full = self.full(&state);
        drop(state);
        drop(gone);
        self.refuse(reply, full);
    }

    /// What a request is refused with.
    fn full(&self, state: &State) -> Error {
        let (items, tokens, bytes) = state.room.waiting();
        let Load { queue_depth, queue_tokens, queue_bytes, .. } = self.load;
        Error::queue_full(format!(
            "the queue is full: {items} of {queue_depth} images, {tokens} of {queue_tokens} tokens, {bytes} of \
             {queue_bytes} bytes wait; call again later or with a longer timeout"
        ))
    }

    fn refuse(&self, reply: Reply, full: Error) {
        self.counters.refused();
        reply.send(Err(full));
    }

    /// Lets nothing in any more. What is inside will be finished; what waits outside is refused.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let outside = std::mem::take(&mut state.outside);
        self.to_prepare.notify_all();
        self.to_run.notify_all();
        drop(state);
        for item in outside {
            item.reply.send(Err(closed()));
        }
    }

    /// Whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }
}

fn closed() -> Error {
    Error::closed("this encoder is closed")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::super::admission::Cost;
    use super::super::input::Form;
    use super::super::item::{Request, Times};
    use super::*;
    use crate::family::Grid;
    use crate::pixels::{PixelValues, Samples};
    use crate::{ErrorKind, Result};

    fn queue(load: Load) -> Arc<Queue> {
        Arc::new(Queue::new(load, Counters::default()))
    }

    fn push(queue: &Arc<Queue>, work: Work, tokens: usize) -> Ticket {
        let (ticket, reply) = Ticket::new(queue.clone(), None);
        queue.push(Item {
            work,
            grids: vec![Grid::still(1, 1)],
            offsets: vec![0, tokens],
            hash: None,
            cost: Cost { tokens, bytes: 1 },
            times: Times::default(),
            since: Instant::now(),
            reply,
            warmup: false,
        });
        ticket
    }

    fn pixels(queue: &Arc<Queue>, tokens: usize) -> Ticket {
        let pixels = PixelValues { rows: 0, columns: 0, samples: Samples::F32(Vec::new()) };
        push(queue, Work::Pixels(Arc::new(pixels.into())), tokens)
    }

    fn source(queue: &Arc<Queue>, tokens: usize) -> Ticket {
        let request = Request { source: Arc::new([0u8; 4]), expected: None };
        push(queue, Work::Source(request.source, Form::Values), tokens)
    }

    fn batch(queue: &Queue) -> Vec<usize> {
        queue.next_batch(0).unwrap().iter().map(Item::tokens).collect()
    }

    fn kind(ticket: &Ticket) -> Option<ErrorKind> {
        ticket.take().map(|answer: Result<_>| answer.err().unwrap().kind())
    }

    #[test]
    fn one_at_a_time_in_order_of_arrival() {
        let queue = queue(Load { queue_depth: 2, ..Load::default() });
        let _tickets: Vec<_> = (1..=4).map(|tokens| pixels(&queue, tokens)).collect();
        let lengths = queue.lengths();
        assert_eq!((lengths.outside, lengths.queued, lengths.tokens), (2, 2, 3));
        assert_eq!([batch(&queue), batch(&queue), batch(&queue), batch(&queue)].concat(), [1, 2, 3, 4]);
        assert_eq!(queue.lengths(), Lengths { running: 4, ..Lengths::default() });
        queue.ran(4);
        assert_eq!(queue.lengths(), Lengths::default());
    }

    #[test]
    fn a_batch_takes_what_fits_and_leaves_the_order() {
        let queue = queue(Load { batch_images: 3, batch_tokens: 10, ..Load::default() });
        let _tickets: Vec<_> = [99, 4, 4, 4, 1, 1, 1, 1].map(|tokens| pixels(&queue, tokens)).into();
        let batches: Vec<_> = (0..4).map(|_| batch(&queue)).collect();
        assert_eq!(batches, [vec![99], vec![4, 4], vec![4, 1, 1], vec![1, 1]]);
    }

    #[test]
    fn the_abandoned_are_taken_out_wherever_they_wait() {
        let queue = queue(Load { queue_depth: 2, batch_images: 8, ..Load::default() });
        let mut tickets: Vec<_> = (1..=5).map(|tokens| pixels(&queue, tokens)).collect();
        // 1 and 2 are inside, the others outside. Room that is given up goes to the next outside.
        drop(tickets.remove(3));
        drop(tickets.remove(0));
        let lengths = queue.lengths();
        assert_eq!((lengths.outside, lengths.queued, lengths.tokens), (1, 2, 2 + 3));
        assert_eq!(batch(&queue), [2, 3]);
        Ticket::abandon(tickets);
        assert_eq!(queue.lengths(), Lengths { running: 2, ..Lengths::default() });
        assert_eq!(queue.counters().read(Lengths::default()).abandoned, 3);
    }

    #[test]
    fn the_abandoned_gives_its_room_back_when_it_was_prepared() {
        let queue = queue(Load { queue_depth: 1, ..Load::default() });
        let (first, _second) = (source(&queue, 1), source(&queue, 2));
        let item = queue.next_to_prepare().unwrap();
        drop(first);
        assert_eq!((queue.lengths().outside, queue.lengths().preparing), (1, 1));
        queue.prepared(item);
        let lengths = queue.lengths();
        assert_eq!((lengths.outside, lengths.queued, lengths.tokens), (0, 1, 2));
        assert_eq!(queue.counters().read(lengths).abandoned, 1);
    }

    #[test]
    fn who_was_let_in_does_not_expire() {
        let queue = queue(Load { queue_depth: 1, ..Load::default() });
        let (inside, outside) = (pixels(&queue, 1), pixels(&queue, 2));
        inside.expire();
        outside.expire();
        assert!(inside.take().is_none());
        assert_eq!(kind(&outside), Some(ErrorKind::QueueFull));
        assert_eq!(kind(&outside), Some(ErrorKind::Argument), "an answer is there once");
        assert_eq!(batch(&queue), [1]);
    }

    #[test]
    fn closing_refuses_outside_and_finishes_inside() {
        let queue = queue(Load { queue_depth: 2, ..Load::default() });
        let tickets = [pixels(&queue, 1), source(&queue, 2), pixels(&queue, 3)];
        queue.close();
        let late = pixels(&queue, 4);
        assert_eq!(kind(&tickets[2]), Some(ErrorKind::Closed));
        assert_eq!(kind(&late), Some(ErrorKind::Closed));
        assert_eq!(batch(&queue), [1]);
        // A worker waits for what is still being prepared, and ends after it.
        let item = queue.next_to_prepare().unwrap();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| (batch(&queue), queue.next_batch(0).is_none()));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!worker.is_finished());
            queue.prepared(item);
            assert_eq!(worker.join().unwrap(), (vec![2], true));
        });
        assert!(queue.next_to_prepare().is_none());
    }

    #[test]
    fn a_reply_that_is_dropped_answers() {
        let queue = queue(Load::default());
        let (ticket, reply) = Ticket::new(queue.clone(), None);
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        ticket.on_answer(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        drop(reply);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert_eq!(kind(&ticket), Some(ErrorKind::Internal));
    }

    #[test]
    fn many_threads_lose_nothing() {
        const EACH: usize = 500;
        let load = Load { replicas: 3, queue_depth: 5, batch_images: 4, ..Load::default() };
        let queue = queue(load);
        let ran = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (queue, ran) = (&queue, &ran);
            for replica in 0..load.replicas {
                scope.spawn(move || {
                    while let Some(items) = queue.next_batch(replica) {
                        ran.fetch_add(items.len(), Ordering::Relaxed);
                        queue.ran(items.len());
                        items.into_iter().for_each(|item| item.reply.send(Err(Error::media("done"))));
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(move || {
                    while let Some(mut item) = queue.next_to_prepare() {
                        let samples = Samples::F32(Vec::new());
                        let pixels = PixelValues { rows: 0, columns: 0, samples };
                        item.work = Work::Pixels(Arc::new(pixels.into()));
                        if item.tokens() % 7 == 0 {
                            queue.unprepared(&item);
                            item.reply.send(Err(Error::media("bad")));
                        } else {
                            queue.prepared(item);
                        }
                    }
                });
            }
            let callers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        let tickets: Vec<_> = (0..EACH).map(|number| source(queue, number)).collect();
                        for (number, ticket) in tickets.into_iter().enumerate() {
                            if number % 5 == 0 {
                                continue; // dropped: abandoned
                            }
                            let answer = ticket.wait(Duration::from_secs(60)).expect("an answer");
                            let text = if number % 7 == 0 { "bad" } else { "done" };
                            assert_eq!(answer.err().unwrap().to_string(), text);
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            queue.close();
        });
        assert_eq!(queue.lengths(), Lengths::default());
        assert!(ran.load(Ordering::Relaxed) >= 4 * (EACH - EACH / 5 - EACH / 7));
    }
}
