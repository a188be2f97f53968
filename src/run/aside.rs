//! What is looked at beside the lanes: the machine's accounts over their window, and the drives' state before
//! and after.

use super::Job;
use crate::measure::{Accounts, AccountsWindow, CpuUse, CpuWindow, Meters};
use nvpoll_engine::{Condition, Engine};
use std::time::Duration;

/// How long before a window opens other programs are looked at, which takes a moment.
const BEFORE_WINDOW: Duration = Duration::from_millis(50);

/// Everything that was seen beside the lanes.
#[derive(Debug, Default)]
pub(super) struct Aside {
    pub cpu: CpuUse,
    pub accounts: Accounts,
    /// Of each target, before the lanes ran and after.
    pub conditions: Vec<[Condition; 2]>,
}

/// Looks at the machine while lanes run.
pub(super) struct Watcher {
    meters: Meters,
    windows: Option<(CpuWindow, AccountsWindow)>,
    /// Other programs were looked at for the window to come.
    has_looked: bool,
    before: Vec<Condition>,
}

impl Watcher {
    /// For `job`, before an engine starts threads: counters follow the threads that come after them.
    pub fn new(job: &Job<'_>) -> Self {
        let meters = Meters::new(job.addresses.to_vec());
        Self { meters, windows: None, has_looked: false, before: Vec::new() }
    }

    /// Before the lanes of `engines` run, on `processors`.
    pub fn begin<E: Engine>(&mut self, engines: &[E], processors: &[usize]) {
        self.meters.watch_processors(processors);
        self.before = engines.iter().map(Engine::condition).collect();
    }

    /// The window opens at once, or after a ramp.
    pub fn prepare(&mut self) {
        self.meters.look_around();
        self.has_looked = false;
    }

    /// So long before the window opens.
    pub fn approach(&mut self, left: Duration) {
        if !self.has_looked && left <= BEFORE_WINDOW {
            self.meters.look_around();
            self.has_looked = true;
        }
    }

    /// The window opens, or opens anew.
    pub fn open(&mut self) {
        let accounts = self.meters.open();
        self.windows = Some((CpuWindow::open(), accounts));
    }

    /// Some times a second while it is open.
    pub fn look(&mut self) {
        self.meters.look();
    }

    /// The window closes. Per I/O the figures are taken once the lanes have said how many there were.
    pub fn close(&mut self) -> (CpuUse, Accounts) {
        match self.windows.take() {
            Some((cpu, accounts)) => (cpu.close(0), self.meters.close(&accounts)),
            None => <(CpuUse, Accounts)>::default(),
        }
    }

    /// After the lanes have ended; `used` is what [`close`](Self::close) gave, where a window was open.
    pub fn end<E: Engine>(self, engines: &[E], used: Option<(CpuUse, Accounts)>) -> Aside {
        let (cpu, accounts) = used.unwrap_or_default();
        let after = engines.iter().map(Engine::condition);
        let conditions = self.before.into_iter().zip(after).map(|(before, after)| [before, after]);
        Aside { cpu, accounts, conditions: conditions.collect() }
    }
}
