//! What the lanes of a run share: the request to stop, and live figures.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The request to stop, set by a signal or by what a look at the targets showed; all lanes look at
/// it.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    reason: OnceLock<String>,
}

impl Control {
    /// A control that asks for nothing.
    pub const fn new() -> Self {
        Self { stop: AtomicBool::new(false), reason: OnceLock::new() }
    }

    /// Asks all lanes to close their windows and drain.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Asks all lanes to stop, and keeps the first such reason.
    pub fn stop_because(&self, reason: String) {
        // A later reason is a consequence, as a rule.
        let _ = self.reason.set(reason);
        self.stop();
    }

    /// Why it was asked for, where that was not a signal.
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Whether a stop was asked for.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// One lane's live figures; on a cache line of its own, and written 50 times a second.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Progress {
    completed: AtomicU64,
    over: AtomicBool,
}

impl Progress {
    /// I/Os that the lane has completed since it started, ramp included.
    pub fn completed(&self) -> u64 {
        self.completed.load(Relaxed)
    }

    /// Whether the lane's window is over and nothing is in flight any more.
    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    pub(super) fn publish(&self, completed: u64) {
        self.completed.store(completed, Relaxed);
    }
}
