//! Systems on which no account is read: each is missing, and says so.

use super::Accounts;
use std::collections::BTreeMap;

/// The accounts that a window on Linux has, by field.
const FIELDS: [&str; 13] = [
    "package_j",
    "dram_j",
    "cycles_user",
    "cycles_kernel",
    "instructions_user",
    "instructions_kernel",
    "interrupts",
    "drive_interrupts",
    "context_switches",
    "voluntary_switches",
    "involuntary_switches",
    "frequency_mhz",
    "others_busy_s",
];

/// What opens counters, where there are any.
#[derive(Debug)]
pub struct Meters;

/// A window that has been opened.
#[derive(Debug)]
pub struct AccountsWindow;

impl Meters {
    /// For the threads that follow, on drives.
    pub fn new(_: Vec<String>) -> Self {
        Self
    }

    /// The workers' processors.
    pub fn watch_processors(&mut self, _: &[usize]) {}

    /// A look at other programs.
    pub fn look_around(&mut self) {}

    /// Opens a window.
    pub fn open(&mut self) -> AccountsWindow {
        AccountsWindow
    }

    /// One look inside a window.
    pub fn look(&mut self) {}

    /// Closes a window: nothing was read, and each account says so.
    pub fn close(&mut self, _: &AccountsWindow) -> Accounts {
        let system = if cfg!(windows) { "Windows" } else { "this system" };
        let why = format!("not read on {system}");
        let missing = FIELDS.map(|field| (field.to_owned(), why.clone()));
        Accounts { missing: BTreeMap::from(missing), ..Accounts::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_account_is_missing_and_says_why() {
        let accounts = Meters::new(Vec::new()).close(&AccountsWindow);
        assert_eq!(accounts, Accounts { missing: accounts.missing.clone(), ..Accounts::default() });
        let text = serde_json::to_value(&accounts).unwrap();
        for field in text.as_object().unwrap().keys() {
            // Two that are words about others.
            let is_figure = field != "missing" && field != "busiest_other";
            assert_eq!(accounts.missing.contains_key(field), is_figure, "{field}");
        }
    }
}
