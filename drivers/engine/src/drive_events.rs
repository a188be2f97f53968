//! What a drive reports by itself while it is driven (Asynchronous Event Request, §5.2).

use nvpoll_nvme::{Controller, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::FeatureId;
use std::sync::{Mutex, PoisonError};

/// Critical warnings of the SMART log, all of them (§5.21.1.11): spare, temperature, reliability, read-only
/// media, backup of volatile memory, and of 1.4 the persistent memory region.
const CRITICAL_WARNINGS: u32 = 0x3f;
/// Those that 1.0 has.
const CRITICAL_WARNINGS_1_0: u32 = 0x1f;
/// OAES and the same bits of the feature: namespace attributes, firmware activation.
const NOTICES: u32 = 3 << 8;
/// Events that are kept; a drive that reports more says nothing new.
const KEPT: usize = 16;

/// Asks for events, and keeps what was seen, each once.
#[derive(Debug)]
pub(crate) struct DriveEvents(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    events: Vec<String>,
    /// Why nothing is seen any more.
    deaf: Option<String>,
}

impl DriveEvents {
    /// Has the controller report from now on. What it leaves as it is when it is disabled.
    pub fn ask<F: Function>(controller: &Controller<F>) -> Self {
        let notices = controller.identity().async_events & NOTICES;
        // A controller that knows fewer warnings may refuse the bits of the others.
        let set = |warnings| controller.set_feature(FeatureId::ASYNC_EVENTS, warnings | notices);
        let fewer = |error| match error {
            NvmeError::Command { .. } => set(CRITICAL_WARNINGS_1_0),
            other => Err(other),
        };
        let asked =
            set(CRITICAL_WARNINGS).or_else(fewer).and_then(|()| controller.ask_for_events());
        let deaf = asked.err().map(|error| error.to_string());
        Self(Mutex::new(Seen { events: Vec::new(), deaf }))
    }

    /// Takes what was reported since. Log pages are not read for it, which would cost the drive time: so of
    /// each kind the first one alone comes.
    pub fn look<F: Function>(&self, controller: &Controller<F>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.deaf.is_some() {
            return;
        }
        match controller.take_events() {
            Ok(events) => {
                for text in events.iter().map(ToString::to_string) {
                    if seen.events.len() < KEPT && !seen.events.contains(&text) {
                        seen.events.push(text);
                    }
                }
            }
            Err(error) => seen.deaf = Some(error.to_string()),
        }
    }

    /// What was seen, and why no more is, where that is so.
    pub fn seen(&self) -> (Vec<String>, Option<String>) {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.events.clone(), seen.deaf.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::userspace::Soft;
    use crate::{CautionKind, Engine, OpenOptions, Target};
    use nvpoll_nvme::Options;
    use nvpoll_pci::soft::SoftFunction;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn what_a_drive_reports_is_a_caution_once() {
        let target = Target::Soft("size=1M".parse().unwrap());
        let engine = Soft::open(&target, &OpenOptions::default()).unwrap();
        engine.check().unwrap();
        assert_eq!(engine.cautions(), [], "a healthy drive");
        // It is warmer than this, so it reports (§5.21.1.4).
        for _ in 0..2 {
            engine.controller().set_feature(FeatureId::TEMPERATURE_THRESHOLD, 200).unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while engine.cautions().is_empty() && Instant::now() < deadline {
            engine.check().unwrap();
        }
        let cautions = engine.cautions();
        let [caution] = cautions.as_slice() else { panic!("{cautions:?}") };
        assert_eq!(caution.kind, CautionKind::DriveEvent);
        assert!(
            caution.text.contains("SMART / health status: temperature threshold"),
            "{caution:?}"
        );
    }

    #[test]
    fn a_drive_whose_events_are_not_heard_is_said_to_be() {
        let function = SoftFunction::open(&"size=1M".parse().unwrap()).unwrap();
        let device = Arc::clone(function.controller());
        let controller = Controller::open(function, Options::default()).unwrap();
        device.faults().vanish();
        let events = DriveEvents::ask(&controller);
        events.look(&controller);
        let (seen, deaf) = events.seen();
        assert_eq!(seen, Vec::<String>::new());
        let deaf = deaf.expect("why nothing is heard");
        assert!(deaf.contains("all ones"), "{deaf}");
    }
}
