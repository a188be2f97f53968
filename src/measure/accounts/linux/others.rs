//! What else kept the processors busy: other programs' time over a window.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The kernel's flag of its own threads (PF_KTHREAD, linux/sched.h): their work may be for our I/O.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Processes that are looked at, at most.
const PROCESSES_MAX: usize = 100_000;

/// A process, told from a later one of the same number by when it started.
type Who = (u32, u64);

/// Other programs as they stand at one moment: name, and time used so far in ticks.
#[derive(Clone, Debug, Default)]
pub struct Others(BTreeMap<Who, (String, u64)>);

/// What other programs used of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// All of them, in ticks. What ended inside the window is not in it.
    pub ticks: u64,
    /// The one that used most, and how much.
    pub most: Option<(String, u64)>,
}

impl Others {
    /// Every process but `own` and the kernel's threads, in the system under `root`.
    pub fn read(root: &Path, own: u32) -> Self {
        let Ok(entries) = fs::read_dir(root.join("proc")) else { return Self::default() };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let others =
            numbers.filter(|pid| *pid != own).take(PROCESSES_MAX).filter_map(|pid: u32| {
                let stat = fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
                let (start, name, ticks) = parse(&stat)?;
                Some(((pid, start), (name, ticks)))
            });
        Self(others.collect())
    }

    /// What was used since `before`.
    pub fn since(&self, before: &Self) -> Used {
        let mut used = Used::default();
        for (who, (name, ticks)) in &self.0 {
            let from = before.0.get(who).map_or(0, |(_, ticks)| *ticks);
            let ticks = ticks.saturating_sub(from);
            used.ticks = used.ticks.saturating_add(ticks);
            if ticks > used.most.as_ref().map_or(0, |(_, most)| *most) {
                used.most = Some((name.clone(), ticks));
            }
        }
        used
    }
}

/// When it started, its name, and user and system time, of proc_pid_stat(5); `None` for a kernel thread.
fn parse(stat: &str) -> Option<(u64, String, u64)> {
    // A name may hold spaces and parentheses itself.
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let words: Vec<&str> = tail.split_ascii_whitespace().collect();
    let number = |field: usize| words.get(field)?.parse::<u64>().ok();
    // Behind the name: 0 is the state, field 3 of the manual page.
    let (flags, user, system, start) = (number(6)?, number(11)?, number(12)?, number(19)?);
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    (flags & KERNEL_THREAD == 0).then(|| (start, name, user.saturating_add(system)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(root: &Path, pid: u32, name: &str, flags: u64, ticks: (u64, u64), start: u64) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let (user, system) = ticks;
        let text = format!(
            "{pid} ({name}) R 1 1 1 0 -1 {flags} 0 0 0 0 {user} {system} 0 0 20 0 1 0 {start} 0 0\n"
        );
        fs::write(folder.join("stat"), text).unwrap();
    }

    #[test]
    fn other_programs_time_and_who_used_most() {
        let root = tempfile::tempdir().unwrap();
        let set =
            |pid, name, flags, ticks, start| process(root.path(), pid, name, flags, ticks, start);
        set(1, "init", 0x0040_0100, (10, 10), 0);
        set(2, "kworker/0:1", KERNEL_THREAD, (0, 500), 1);
        set(7, "nvpoll", 0x0040_0000, (100, 100), 5);
        set(8, "cc (1) x", 0x0040_0000, (50, 5), 6);
        let before = Others::read(root.path(), 7);
        set(1, "init", 0x0040_0100, (11, 10), 0);
        set(2, "kworker/0:1", KERNEL_THREAD, (0, 900), 1);
        set(7, "nvpoll", 0x0040_0000, (900, 900), 5);
        set(8, "cc (1) x", 0x0040_0000, (90, 15), 6);
        // The same number, another process.
        set(9, "late", 0, (3, 0), 77);
        let used = Others::read(root.path(), 7).since(&before);
        assert_eq!(used, Used { ticks: 1 + 50 + 3, most: Some(("cc (1) x".into(), 50)) });
        assert_eq!(before.since(&before), Used::default());
    }

    #[test]
    fn what_is_no_process_is_passed_over() {
        for text in ["", "1 (x", "1 (x) R 1", "1 (x) R a b c d e f g h i j k l m n o p q r s t"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Others::read(nothing.path(), 1).since(&Others::default()), Used::default());
    }
}
