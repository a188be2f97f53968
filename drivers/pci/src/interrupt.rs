//! Interrupts, as events that a thread can sleep on.

#[cfg(target_os = "linux")]
pub use linux::Interrupt;

/// No transport of this system has interrupts.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum Interrupt {}

#[cfg(not(target_os = "linux"))]
impl Interrupt {
    /// Never called: there is no such value.
    pub fn wait(&self, _time_max: std::time::Duration) -> std::io::Result<bool> {
        match *self {}
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, RawFd};
    use std::time::Duration;

    /// An event that the kernel counts up: once an interrupt came, or when it wants a device back.
    #[derive(Debug)]
    pub struct Interrupt(EventFd);

    impl Interrupt {
        /// An event that nobody signals yet.
        pub(crate) fn new() -> io::Result<Self> {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            Ok(Self(EventFd::from_value_and_flags(0, flags)?))
        }

        /// The descriptor, for the system call that connects it.
        pub(crate) fn descriptor(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }

        /// Whether it was signalled since the last time; does not wait.
        pub fn take(&self) -> bool {
            self.0.read().is_ok()
        }

        /// Sleeps until it is signalled, for at most `time_max`; returns whether it was since the last
        /// time. What came before the call counts, so that none is missed between a look at a queue and
        /// the sleep.
        ///
        /// # Errors
        /// When the system cannot wait.
        pub fn wait(&self, time_max: Duration) -> io::Result<bool> {
            let mut events = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let ms = i32::try_from(time_max.as_millis()).unwrap_or(i32::MAX);
            match poll(&mut events, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)) {
                // A signal ended the sleep; whoever called looks at what it asks for.
                Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(self.take()),
                Err(error) => Err(error.into()),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_signal_before_the_wait_is_not_missed() {
            let interrupt = Interrupt::new().unwrap();
            assert!(!interrupt.take());
            assert!(!interrupt.wait(Duration::from_millis(1)).unwrap());
            interrupt.0.write(1).unwrap();
            assert!(interrupt.wait(Duration::from_secs(10)).unwrap());
            assert!(!interrupt.take(), "it is taken once");
        }

        #[test]
        fn a_sleeper_wakes() {
            let interrupt = std::sync::Arc::new(Interrupt::new().unwrap());
            let other = std::sync::Arc::clone(&interrupt);
            let signals = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                other.0.write(1).unwrap();
            });
            assert!(interrupt.wait(Duration::from_secs(30)).unwrap());
            signals.join().unwrap();
        }
    }
}
