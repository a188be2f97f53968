//! Ctrl-C and its like: the window closes, the drives go back, what was measured is kept.

use super::out::tell;
use crate::failure::Failure;
use crate::run::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Lets SIGINT, SIGTERM and SIGHUP (on Windows Ctrl-C and its like) stop a run in order.
///
/// # Errors
/// When the handler cannot be set: a drive might then not come back, so nothing is begun.
pub fn stop_on_signals(control: &Arc<Control>) -> Result<(), Failure> {
    on_signals(
        control,
        "stopping; drives are given back",
        "still giving drives back; a kill now would leave them to `nvpoll unbind --all`",
    )
}

/// The same, with the words for the first signal and for those after it.
///
/// # Errors
/// When the handler cannot be set.
pub fn on_signals(
    control: &Arc<Control>,
    first: &'static str,
    again: &'static str,
) -> Result<(), Failure> {
    let (control, count) = (Arc::clone(control), AtomicU32::new(0));
    ctrlc::set_handler(move || {
        control.stop();
        match count.fetch_add(1, Relaxed) {
            0 => tell!("\nnvpoll: {first}"),
            _ => tell!("nvpoll: {again}"),
        }
    })
    .map_err(|error| Failure::failed(format!("cannot set a handler for Ctrl-C: {error}")))
}
