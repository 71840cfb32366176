//! Requests under way, seen from Python: waited for by a thread, or by an event loop through a mailbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::encoding::Encoding;
use super::mailbox::Sender;
use crate::encoder::{Encoded, Ticket};
use crate::{Error, Result};

/// How often a waiting call looks for Ctrl-C.
pub const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// The requests of one asynchronous call.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
pub struct Requests {
    tickets: Mutex<Vec<Ticket>>,
}

impl Requests {
    /// `tickets`, of whose last answer `sender` tells.
    pub fn new(tickets: Vec<Ticket>, sender: Sender) -> Self {
        let left = Arc::new((AtomicUsize::new(tickets.len()), Mutex::new(Some(sender))));
        for ticket in &tickets {
            let left = left.clone();
            ticket.on_answer(Box::new(move || {
                if left.0.fetch_sub(1, Ordering::AcqRel) == 1
                    && let Some(sender) = left.1.lock().unwrap_or_else(PoisonError::into_inner).take()
                {
                    sender.send();
                }
            }));
        }
        Self { tickets: Mutex::new(tickets) }
    }

    fn take(&self) -> Vec<Ticket> {
        std::mem::take(&mut *self.tickets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Requests {
    /// The outcomes in order, once all are there: an Encoding, or the exception of that item alone.
    fn results(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let early = || Error::internal("a request was asked for before its answer came");
        self.take()
            .into_iter()
            .map(|ticket| outcome(py, ticket.take().unwrap_or_else(|| Err(early()))))
            .collect()
    }

    /// Refuses those that still wait for room in the queue.
    fn expire(&self) {
        for ticket in &*self.tickets.lock().unwrap_or_else(PoisonError::into_inner) {
            ticket.expire();
        }
    }

    /// Takes all that have not begun out of the queue and frees the answers of the others.
    fn cancel(&self, py: Python<'_>) {
        let tickets = self.take();
        // Behind `results` nothing is left, and an event loop on a daemon thread must not meet the interpreter's end here.
        if !tickets.is_empty() {
            py.detach(|| Ticket::abandon(tickets));
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        Ticket::abandon(self.take());
    }
}

/// Waits for all `tickets` off the GIL, looking for signals now and then; those that wait for room at `end` are
/// refused.
pub fn wait(py: Python<'_>, tickets: Vec<Ticket>, end: Option<Instant>) -> PyResult<Vec<Py<PyAny>>> {
    let mut waiting = Waiting { tickets, end };
    let mut outcomes = Vec::with_capacity(waiting.tickets.len());
    for index in 0..waiting.tickets.len() {
        outcomes.push(outcome(py, waiting.answer(py, index)?)?);
    }
    Ok(outcomes)
}

struct Waiting {
    tickets: Vec<Ticket>,
    end: Option<Instant>,
}

impl Waiting {
    fn answer(&mut self, py: Python<'_>, index: usize) -> PyResult<Result<Encoded>> {
        loop {
            // Before every answer: where they come one upon the other, no wait ends without one.
            py.check_signals()?;
            if let Some(answer) = self.tickets[index].take() {
                return Ok(answer);
            }
            let now = Instant::now();
            if let Some(end) = self.end
                && end <= now
            {
                self.end = None;
                self.tickets[index..].iter().for_each(Ticket::expire);
                continue;
            }
            let time = self.end.map_or(SIGNAL_CHECK, |end| (end - now).min(SIGNAL_CHECK));
            let ticket = &self.tickets[index];
            if let Some(answer) = py.detach(|| ticket.wait(time)) {
                return Ok(answer);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        Ticket::abandon(std::mem::take(&mut self.tickets));
    }
}

fn outcome(py: Python<'_>, outcome: Result<Encoded>) -> PyResult<Py<PyAny>> {
    let encoding = outcome.and_then(Encoding::new);
    match encoding {
        Ok(encoding) => Ok(Py::new(py, encoding)?.into_any()),
        Err(error) => Ok(PyErr::from(error).into_value(py).into_any()),
    }
}

/// Adds the class of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Requests>()
}
