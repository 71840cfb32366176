//! Requests to results: queue, worker, life cycle.
