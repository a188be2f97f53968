//! Faults to order: what a test asks the device to get wrong.

use crate::iommu::lock;
use nvpoll_spec::{Status, SubmissionEntry};
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// What happens to a command that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It is not carried out and completes with this status.
    Fail(Status),
    /// It is carried out and never completes.
    Drop,
    /// It completes twice.
    Twice,
    /// Its completion carries this CID.
    WrongCid(u16),
    /// Its completion carries this submission queue's identifier.
    WrongSqId(u16),
    /// Its completion carries this submission queue head.
    WrongSqHead(u16),
    /// Its completion is posted with the phase tag of the pass before: the host cannot see it, and
    /// the device goes on to the next slot.
    StalePhase,
    /// It completes this much later than it would have. A stepped device has no clock: there it
    /// waits for [`SoftController::release_held`](crate::SoftController::release_held).
    Delay(Duration),
    /// It completes after this many later completions of its completion queue, or at
    /// [`SoftController::release_held`](crate::SoftController::release_held).
    Defer(u32),
}

/// Which commands, and what happens to them. Every condition that is `None` matches all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Submission queue, 0 for the admin queue.
    pub queue: Option<u16>,
    /// Opcode, an admin or an NVM one by the queue.
    pub opcode: Option<u8>,
    /// The command touches at least one of these logical blocks. Only I/O commands match.
    pub lba: Option<RangeInclusive<u64>>,
    /// Matches that pass unharmed before the first one is acted upon.
    pub skip: u64,
    /// Matches that are acted upon; the rule is spent after them.
    pub times: u64,
    /// What happens.
    pub action: FaultAction,
}

impl FaultRule {
    /// `action` for every command on every queue, until narrowed.
    pub fn all(action: FaultAction) -> Self {
        Self { queue: None, opcode: None, lba: None, skip: 0, times: u64::MAX, action }
    }

    /// On this submission queue alone.
    #[must_use]
    pub fn on_queue(mut self, queue: u16) -> Self {
        self.queue = Some(queue);
        self
    }

    /// For this opcode alone.
    #[must_use]
    pub fn for_opcode(mut self, opcode: u8) -> Self {
        self.opcode = Some(opcode);
        self
    }

    /// For commands that touch these blocks alone.
    #[must_use]
    pub fn for_blocks(mut self, lba: RangeInclusive<u64>) -> Self {
        self.lba = Some(lba);
        self
    }

    /// Only the `nth` match, counted from 1.
    #[must_use]
    pub fn only_nth(mut self, nth: u64) -> Self {
        self.skip = nth.saturating_sub(1);
        self.times = 1;
        self
    }

    fn matches(&self, queue: u16, entry: &SubmissionEntry) -> bool {
        let first = entry.lba();
        let last = first.saturating_add(entry.blocks_z().into());
        let touches =
            |lba: &RangeInclusive<u64>| queue != 0 && first <= *lba.end() && last >= *lba.start();
        self.queue.is_none_or(|wanted| wanted == queue)
            && self.opcode.is_none_or(|wanted| wanted == entry.opcode)
            && self.lba.as_ref().is_none_or(touches)
    }
}

/// The device's own ill health, beside the commands'.
pub(crate) mod mode {
    /// Every register reads as all-ones, every doorbell is ignored.
    pub(crate) const VANISHED: u32 = 1;
    /// CSTS.RDY never rises.
    pub(crate) const NEVER_READY: u32 = 1 << 1;
    /// CSTS.SHST stays at "occurring".
    pub(crate) const HANG_SHUTDOWN: u32 = 1 << 2;
    /// No command is fetched.
    pub(crate) const HUNG: u32 = 1 << 3;
    /// CSTS.RDY never falls.
    pub(crate) const NEVER_DISABLED: u32 = 1 << 4;
    /// CSTS.CFS is set, until a reset.
    pub(crate) const FATAL: u32 = 1 << 5;
    /// Not an illness: completions that were held back are to be let go.
    pub(crate) const RELEASE: u32 = 1 << 6;
}

/// What a test makes the device do wrong. With nothing set it costs the device one relaxed load a
/// command.
#[derive(Debug, Default)]
pub struct FaultHooks {
    armed: AtomicBool,
    modes: AtomicU32,
    rules: Mutex<Vec<FaultRule>>,
}

impl FaultHooks {
    /// Adds a rule; the first one that matches a command acts on it.
    pub fn add(&self, rule: FaultRule) {
        lock(&self.rules).push(rule);
        self.armed.store(true, Ordering::Release);
    }

    /// Takes all rules and modes away; a drive that vanished is back.
    pub fn clear(&self) {
        lock(&self.rules).clear();
        self.armed.store(false, Ordering::Release);
        self.modes.store(0, Ordering::Release);
    }

    /// The device is gone, as after a surprise removal: registers read as all-ones, writes and
    /// doorbells are ignored, nothing completes.
    pub fn vanish(&self) {
        self.set(mode::VANISHED, true);
    }

    /// CSTS.RDY never rises when CC.EN does.
    pub fn set_never_ready(&self, on: bool) {
        self.set(mode::NEVER_READY, on);
    }

    /// CSTS.RDY never falls when CC.EN does.
    pub fn set_never_disabled(&self, on: bool) {
        self.set(mode::NEVER_DISABLED, on);
    }

    /// CSTS.CFS rises at once and the device stops, until it is reset.
    pub fn set_fatal(&self) {
        self.set(mode::FATAL, true);
    }

    /// CSTS.SHST stays at "occurring" after a shutdown notification.
    pub fn hang_shutdown(&self, on: bool) {
        self.set(mode::HANG_SHUTDOWN, on);
    }

    /// No command is fetched any more, admin commands included; registers still answer.
    pub fn set_hung(&self, on: bool) {
        self.set(mode::HUNG, on);
    }

    pub(crate) fn set(&self, bit: u32, on: bool) {
        if on {
            self.modes.fetch_or(bit, Ordering::Release);
        } else {
            self.modes.fetch_and(!bit, Ordering::Release);
        }
    }

    #[inline(always)]
    pub(crate) fn is(&self, bit: u32) -> bool {
        self.modes.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether `bit` was set, and clears it.
    pub(crate) fn take(&self, bit: u32) -> bool {
        self.is(bit) && self.modes.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    #[inline(always)]
    pub(crate) fn modes(&self) -> u32 {
        self.modes.load(Ordering::Relaxed)
    }

    /// What is to happen to this command.
    #[inline]
    pub(crate) fn action(&self, queue: u16, entry: &SubmissionEntry) -> Option<FaultAction> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        self.look_up(queue, entry)
    }

    #[cold]
    fn look_up(&self, queue: u16, entry: &SubmissionEntry) -> Option<FaultAction> {
        let mut rules = lock(&self.rules);
        let mut hit = None;
        for rule in rules.iter_mut().filter(|rule| rule.matches(queue, entry)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                hit = Some(rule.action);
                break;
            }
        }
        rules.retain(|rule| rule.times > 0);
        if rules.is_empty() {
            self.armed.store(false, Ordering::Release);
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_spec::NvmOpcode;

    #[test]
    fn rules_match_count_and_are_spent() {
        let hooks = FaultHooks::default();
        let read = |lba| SubmissionEntry::io(NvmOpcode::READ, 1, lba, 7);
        assert_eq!(hooks.action(1, &read(0)), None);
        hooks.add(
            FaultRule::all(FaultAction::Drop)
                .on_queue(2)
                .for_opcode(NvmOpcode::READ.0)
                .for_blocks(100..=109)
                .only_nth(2),
        );
        assert_eq!(hooks.action(1, &read(100)), None, "another queue");
        assert_eq!(hooks.action(2, &read(92)), None, "ends one block before");
        assert_eq!(hooks.action(2, &read(110)), None, "starts one block after");
        assert_eq!(hooks.action(2, &read(93)), None, "the first match passes");
        assert_eq!(hooks.action(2, &read(109)), Some(FaultAction::Drop));
        assert_eq!(hooks.action(2, &read(109)), None, "spent");
        assert!(!hooks.armed.load(Ordering::Relaxed), "and it costs nothing again");
    }

    #[test]
    fn block_rules_never_match_admin_commands() {
        let hooks = FaultHooks::default();
        hooks.add(FaultRule::all(FaultAction::Drop).for_blocks(0..=u64::MAX));
        assert_eq!(hooks.action(0, &SubmissionEntry::default()), None);
        assert_eq!(hooks.action(1, &SubmissionEntry::default()), Some(FaultAction::Drop));
        hooks.clear();
        assert_eq!(hooks.action(1, &SubmissionEntry::default()), None);
    }
}
