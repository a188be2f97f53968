//! Asynchronous events (§5.2): asked for, taken, and asked for again.

use crate::limits::EVENTS_ASKED;
use crate::{Controller, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::AsyncEvent;

impl<F: Function> Controller<F> {
    /// Has the controller report its events from now on. At most as many requests are held there as
    /// it allows (AERL) and [`EVENTS_ASKED`].
    ///
    /// Which events are reported is the feature Asynchronous Event Configuration's.
    ///
    /// # Errors
    /// When the admin queue does not take them.
    pub fn ask_for_events(&self) -> Result<(), NvmeError> {
        let allowed = u16::from(self.identity().async_requests_z) + 1;
        self.lock_admin().ask_for_events(self.function(), allowed.min(EVENTS_ASKED))
    }

    /// The events that were reported since the last time; each request that was used up is sent
    /// again. Another event of the same kind comes only after the log page that
    /// [`AsyncEvent::log`] names was read.
    ///
    /// # Errors
    /// When the controller refused a request, or the admin queue does not work.
    pub fn take_events(&self) -> Result<Vec<AsyncEvent>, NvmeError> {
        self.lock_admin().take_events(self.function())
    }
}
