//! Cycles and instructions of this process, all its threads, in user mode and in the kernel apart: the
//! processor's own counters, by perf_event_open(2).

use std::io;

/// What the counters have counted. What could not be is an error in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Processor cycles that were not idle.
    pub cycles: [Result<u64, String>; 2],
    /// Instructions that were retired.
    pub instructions: [Result<u64, String>; 2],
}

/// Which of both: user mode, the kernel.
const MODES: [Mode; 2] = [Mode::User, Mode::Kernel];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    User,
    Kernel,
}

/// Counters of the calling thread and of every thread that it starts from here on.
#[derive(Debug)]
pub struct Counters {
    cycles: [os::Counter; 2],
    instructions: [os::Counter; 2],
}

impl Counters {
    /// Opens and starts them.
    pub fn open() -> Self {
        Self {
            cycles: MODES.map(|mode| os::open(os::CYCLES, mode)),
            instructions: MODES.map(|mode| os::open(os::INSTRUCTIONS, mode)),
        }
    }

    /// As they stand now.
    pub fn read(&mut self) -> Counted {
        Counted {
            cycles: self.cycles.each_mut().map(os::read),
            instructions: self.instructions.each_mut().map(os::read),
        }
    }
}

impl Counted {
    /// What was counted since `before`.
    pub fn since(self, before: &Self) -> Self {
        let pairs = |now: [Result<u64, String>; 2], before: &[Result<u64, String>; 2]| {
            let [user, kernel] = now;
            let [user_before, kernel_before] = before;
            [difference(user, user_before), difference(kernel, kernel_before)]
        };
        Self {
            cycles: pairs(self.cycles, &before.cycles),
            instructions: pairs(self.instructions, &before.instructions),
        }
    }
}

fn difference(now: Result<u64, String>, before: &Result<u64, String>) -> Result<u64, String> {
    let before = before.as_ref().map_err(Clone::clone)?;
    Ok(now?.saturating_sub(*before))
}

/// Why a counter does not open, and the remedy.
fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        // ENOENT, EOPNOTSUPP, ENODEV: no such event.
        Some(2 | 95 | 19) => {
            "the processor shows no counters here, as in most virtual machines".to_owned()
        }
        // EPERM, EACCES.
        Some(1 | 13) => {
            "/proc/sys/kernel/perf_event_paranoid forbids it; run as root, or set it to 1"
                .to_owned()
        }
        // ENOSYS.
        Some(38) => "this system has no perf_event_open".to_owned(),
        _ => format!("perf_event_open: {error}"),
    }
}

mod os {
    use super::{Mode, explain};
    use perf_event::Builder;
    use perf_event::events::Hardware;

    pub const CYCLES: Hardware = Hardware::CPU_CYCLES;
    pub const INSTRUCTIONS: Hardware = Hardware::INSTRUCTIONS;

    pub type Counter = Result<perf_event::Counter, String>;

    /// Opens a counter of `event` for this thread and those that it starts from here on.
    pub fn open(event: impl perf_event::events::Event, mode: Mode) -> Counter {
        let opened = Builder::new(event)
            .observe_self()
            .any_cpu()
            .inherit(true)
            .exclude_user(mode == Mode::Kernel)
            .exclude_kernel(mode == Mode::User)
            .exclude_hv(true)
            .enabled(true)
            .build();
        opened.map_err(|error| explain(&error))
    }

    /// What it has counted, all threads together.
    pub fn read(counter: &mut Counter) -> Result<u64, String> {
        let counter = counter.as_mut().map_err(|why| why.clone())?;
        let data = counter.read_full().map_err(|error| format!("a counter: {error}"))?;
        let times = data.time_enabled().zip(data.time_running());
        match times {
            // Others' counters had a turn on the processor's few: what is left would be an estimate.
            Some((enabled, running)) if running < enabled => {
                Err("other programs use the processor's counters at the same time (perf); end them"
                    .to_owned())
            }
            _ => Ok(data.count()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;

    /// The kernel's own events go the same way as the processor's, which a virtual machine has not.
    fn page_faults(mode: Mode) -> os::Counter {
        os::open(Software::PAGE_FAULTS, mode)
    }

    fn touch_pages() {
        let mut pages = vec![0_u8; 4 << 20];
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&pages);
    }

    #[test]
    fn threads_that_are_started_later_are_counted_and_modes_are_apart() {
        let [mut user, mut kernel] = MODES.map(page_faults);
        if let Err(why) = &user {
            // A container may forbid the call; then that is what is said.
            assert!(why.contains("perf_event"), "{why}");
            return;
        }
        let before = os::read(&mut user).unwrap();
        std::thread::spawn(touch_pages).join().unwrap();
        let faults = os::read(&mut user).unwrap() - before;
        assert!(faults >= 512, "{faults} page faults of 1024 pages");
        // Touched in user mode: the kernel took next to none of its own.
        if let Ok(in_kernel) = os::read(&mut kernel) {
            assert!(in_kernel < faults / 2, "{in_kernel} of {faults}");
        }
    }

    #[test]
    fn a_counter_that_is_not_there_says_why_and_is_not_zero() {
        let mut counters = Counters::open();
        let before = counters.read();
        for _ in 0..1_000_000 {
            std::hint::spin_loop();
        }
        let counted = counters.read().since(&before);
        match &counted.cycles[0] {
            Ok(cycles) => assert!(*cycles > 100_000, "{cycles}"),
            Err(why) => assert!(!why.is_empty()),
        }
        let forbidden = explain(&io::Error::from_raw_os_error(13));
        assert!(forbidden.contains("perf_event_paranoid"), "{forbidden}");
        let absent = explain(&io::Error::from_raw_os_error(2));
        assert!(absent.contains("virtual machines"), "{absent}");
    }

    #[test]
    fn what_is_missing_at_one_end_is_missing_in_the_window() {
        let counted = |cycles: Result<u64, String>| Counted {
            cycles: [cycles, Ok(7)],
            instructions: [Ok(5), Err("no".to_owned())],
        };
        let since = counted(Ok(9)).since(&counted(Ok(4)));
        assert_eq!(since.cycles, [Ok(5), Ok(0)]);
        assert_eq!(since.instructions, [Ok(0), Err("no".to_owned())]);
        let gone = counted(Ok(9)).since(&counted(Err("was not".to_owned())));
        assert_eq!(gone.cycles[0], Err("was not".to_owned()));
    }
}
