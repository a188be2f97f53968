//! Features (§5.21.1): kept, given back, and where they mean something to this device, meant.

use crate::device::Outcome;
use crate::identify::{POWER_STATES, WARNING_KELVIN};
use nvpoll_spec::{ApstEntry, FeatureId, Status};

/// Words in the table of Autonomous Power State Transition: one for each possible power state.
pub(crate) const APST_WORDS: usize = 32;

/// Words of Host Behavior Support.
pub(crate) const BEHAVIOR_WORDS: usize = 64;

/// The temperature that the device reports, in kelvin: a mild 27 degrees Celsius.
pub(crate) const TEMPERATURE_KELVIN: u16 = 300;

/// The values that the host set, until the next reset.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    arbitration: u32,
    over_kelvin: u16,
    under_kelvin: u16,
    error_recovery: u32,
    write_cache: u32,
    power_state: u32,
    /// Autonomous Power State Transition: on, and the table.
    apst: (u32, [u64; APST_WORDS]),
    coalescing: u32,
    /// Vectors whose coalescing is disabled.
    uncoalesced: Vec<bool>,
    write_atomicity: u32,
    async_events: u32,
    /// Host Behavior Support, byte by byte.
    pub(crate) behavior: [u64; BEHAVIOR_WORDS],
    /// I/O queue pairs that the controller has.
    queues: u16,
    /// Granted to the host: submission and completion queues.
    granted: (u16, u16),
}

impl Features {
    pub(crate) fn new(queues: u16) -> Self {
        Self {
            arbitration: 0,
            over_kelvin: WARNING_KELVIN,
            under_kelvin: 0,
            error_recovery: 0,
            write_cache: 1,
            power_state: 0,
            apst: (0, [0; APST_WORDS]),
            coalescing: 0,
            uncoalesced: vec![false; usize::from(queues) + 1],
            write_atomicity: 0,
            async_events: 0,
            behavior: [0; BEHAVIOR_WORDS],
            queues,
            granted: (queues, queues),
        }
    }

    /// Most submission and completion queues that may be created.
    pub(crate) fn granted(&self) -> (u16, u16) {
        self.granted
    }

    /// Whether the host knows extended LBA formats (LBAFEE, byte 2).
    pub(crate) fn knows_extended_formats(&self) -> bool {
        self.behavior.first().is_some_and(|word| word >> 16 & 0xff == 1)
    }

    /// Whether the composite temperature is past a threshold, as critical warning bit 1 says.
    pub(crate) fn is_too_hot_or_cold(&self) -> bool {
        TEMPERATURE_KELVIN >= self.over_kelvin || TEMPERATURE_KELVIN <= self.under_kelvin
    }

    /// Whether the host wants to hear of temperatures (Asynchronous Event Configuration, bit 1).
    pub(crate) fn reports_temperature(&self) -> bool {
        self.async_events & 1 << 1 != 0
    }

    fn queue_counts(&self) -> u32 {
        let z = |granted: u16| u32::from(granted.saturating_sub(1));
        z(self.granted.0) | z(self.granted.1) << 16
    }

    /// Get Features: the current value.
    pub(crate) fn get(&self, id: FeatureId, cdw11: u32) -> Outcome {
        Outcome::with(match id {
            FeatureId::ARBITRATION => self.arbitration,
            FeatureId::POWER_MANAGEMENT => self.power_state,
            FeatureId::AUTONOMOUS_POWER => self.apst.0,
            FeatureId::TEMPERATURE_THRESHOLD => match threshold(cdw11) {
                Some(Threshold::Over) => self.over_kelvin.into(),
                Some(Threshold::Under) => self.under_kelvin.into(),
                None => return Outcome::invalid(Status::INVALID_FIELD),
            },
            FeatureId::ERROR_RECOVERY => self.error_recovery,
            FeatureId::VOLATILE_WRITE_CACHE => self.write_cache,
            FeatureId::NUMBER_OF_QUEUES => self.queue_counts(),
            FeatureId::INTERRUPT_COALESCING => self.coalescing,
            FeatureId::INTERRUPT_VECTOR => {
                let vector = cdw11 & 0xffff;
                match self.uncoalesced.get(vector as usize) {
                    Some(disabled) => vector | u32::from(*disabled) << 16,
                    None => return Outcome::invalid(Status::INVALID_FIELD),
                }
            }
            FeatureId::WRITE_ATOMICITY => self.write_atomicity,
            FeatureId::ASYNC_EVENTS => self.async_events,
            _ => return Outcome::invalid(Status::INVALID_FIELD),
        })
    }

    /// The table of Autonomous Power State Transition.
    pub(crate) fn apst_table(&self) -> &[u64; APST_WORDS] {
        &self.apst.1
    }

    /// Set Features, Autonomous Power State Transition (§5.21.1.12): only non-operational states may
    /// be gone to.
    pub(crate) fn set_apst(&mut self, cdw11: u32, table: &[u64; APST_WORDS]) -> Outcome {
        let is_possible = |entry: &u64| {
            let entry = ApstEntry(*entry);
            let state = POWER_STATES.get(usize::from(entry.state()));
            entry.idle_ms() == 0 || state.is_some_and(|state| state.1 & 1 << 1 != 0)
        };
        if !table.iter().all(is_possible) {
            return Outcome::invalid(Status::INVALID_FIELD);
        }
        self.apst = (cdw11 & 1, *table);
        Outcome::DONE
    }

    /// Set Features. `has_queues` says that I/O queues exist.
    pub(crate) fn set(&mut self, id: FeatureId, cdw11: u32, has_queues: bool) -> Outcome {
        match id {
            FeatureId::ARBITRATION => self.arbitration = cdw11 & 0xffff_ff07,
            FeatureId::POWER_MANAGEMENT if ((cdw11 & 0x1f) as usize) < POWER_STATES.len() => {
                self.power_state = cdw11 & 0xff;
            }
            FeatureId::TEMPERATURE_THRESHOLD => match threshold(cdw11) {
                Some(Threshold::Over) => self.over_kelvin = cdw11 as u16,
                Some(Threshold::Under) => self.under_kelvin = cdw11 as u16,
                None => return Outcome::invalid(Status::INVALID_FIELD),
            },
            FeatureId::ERROR_RECOVERY if cdw11 >> 16 == 0 => self.error_recovery = cdw11,
            FeatureId::VOLATILE_WRITE_CACHE => self.write_cache = cdw11 & 1,
            FeatureId::NUMBER_OF_QUEUES => return self.set_queues(cdw11, has_queues),
            FeatureId::INTERRUPT_COALESCING => self.coalescing = cdw11 & 0xffff,
            FeatureId::INTERRUPT_VECTOR => {
                match self.uncoalesced.get_mut((cdw11 & 0xffff) as usize) {
                    Some(disabled) => *disabled = cdw11 & 1 << 16 != 0,
                    None => return Outcome::invalid(Status::INVALID_FIELD),
                }
            }
            FeatureId::WRITE_ATOMICITY => self.write_atomicity = cdw11 & 1,
            FeatureId::ASYNC_EVENTS => self.async_events = cdw11,
            _ => return Outcome::invalid(Status::INVALID_FIELD),
        }
        Outcome::DONE
    }

    /// Number of Queues (§5.21.1.7): before any I/O queue exists; grants what is asked for, up to
    /// what there is.
    fn set_queues(&mut self, cdw11: u32, has_queues: bool) -> Outcome {
        let (asked_sq_z, asked_cq_z) = (cdw11 as u16, (cdw11 >> 16) as u16);
        if has_queues {
            return Outcome::invalid(Status::COMMAND_SEQUENCE);
        }
        if asked_sq_z == u16::MAX || asked_cq_z == u16::MAX {
            return Outcome::invalid(Status::INVALID_FIELD);
        }
        let grant = |asked_z: u16| (asked_z + 1).min(self.queues);
        self.granted = (grant(asked_sq_z), grant(asked_cq_z));
        Outcome::with(self.queue_counts())
    }
}

enum Threshold {
    Over,
    Under,
}

/// Which threshold of the composite temperature is meant (TMPSEL 0, THSEL; §5.21.1.4).
fn threshold(cdw11: u32) -> Option<Threshold> {
    match (cdw11 >> 16 & 0xf, cdw11 >> 20 & 3) {
        (0, 0) => Some(Threshold::Over),
        (0, 1) => Some(Threshold::Under),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_granted_up_to_what_there_is() {
        let mut features = Features::new(8);
        let set = |features: &mut Features, value, has| {
            features.set(FeatureId::NUMBER_OF_QUEUES, value, has)
        };
        assert_eq!(set(&mut features, 3 << 16 | 31, false).result, 3 << 16 | 7);
        assert_eq!(features.granted(), (8, 4));
        assert_eq!(features.get(FeatureId::NUMBER_OF_QUEUES, 0).result, 3 << 16 | 7);
        let refused = set(&mut features, 0xffff, false);
        assert_eq!(refused.status, Outcome::invalid(Status::INVALID_FIELD).status);
        let late = set(&mut features, 0, true);
        assert_eq!(late.status, Outcome::invalid(Status::COMMAND_SEQUENCE).status);
        assert_eq!(features.granted(), (8, 4));
    }

    #[test]
    fn what_is_set_is_read_back() {
        let mut features = Features::new(2);
        for (id, set, get, back) in [
            (FeatureId::ARBITRATION, 0x0302_0107, 0, 0x0302_0107),
            (FeatureId::POWER_MANAGEMENT, 2, 0, 2),
            (FeatureId::TEMPERATURE_THRESHOLD, 310, 0, 310),
            (FeatureId::TEMPERATURE_THRESHOLD, 1 << 20 | 280, 1 << 20, 280),
            (FeatureId::ERROR_RECOVERY, 100, 0, 100),
            (FeatureId::VOLATILE_WRITE_CACHE, 0, 0, 0),
            (FeatureId::INTERRUPT_COALESCING, 0x1_0203, 0, 0x0203),
            (FeatureId::INTERRUPT_VECTOR, 1 << 16 | 2, 2, 1 << 16 | 2),
            (FeatureId::WRITE_ATOMICITY, 1, 0, 1),
            (FeatureId::ASYNC_EVENTS, 0x1f, 0, 0x1f),
        ] {
            assert!(features.set(id, set, false).status.is_success(), "{id}");
            assert_eq!(features.get(id, get).result, back, "{id}");
        }
        for (id, value) in [
            (FeatureId(0x80), 0),
            (FeatureId::POWER_MANAGEMENT, 3),
            (FeatureId::TEMPERATURE_THRESHOLD, 3 << 16),
            (FeatureId::ERROR_RECOVERY, 1 << 16),
            (FeatureId::INTERRUPT_VECTOR, 3),
        ] {
            assert!(!features.set(id, value, false).status.is_success(), "{id}");
        }
        assert!(!features.get(FeatureId(0x80), 0).status.is_success());
    }

    #[test]
    fn power_goes_down_to_non_operational_states_alone() {
        let mut features = Features::new(1);
        let mut table = [0; APST_WORDS];
        table[0] = ApstEntry::new(2, 100).0;
        assert!(features.set_apst(1, &table).status.is_success());
        assert_eq!(features.get(FeatureId::AUTONOMOUS_POWER, 0).result, 1);
        assert_eq!(features.apst_table()[0], table[0]);
        for state in [1, 3, 31] {
            table[1] = ApstEntry::new(state, 1).0;
            assert!(!features.set_apst(0, &table).status.is_success(), "state {state}");
        }
        assert_eq!(features.get(FeatureId::AUTONOMOUS_POWER, 0).result, 1, "as it was");
    }

    #[test]
    fn temperature_thresholds_are_compared() {
        let mut features = Features::new(1);
        assert!(!features.is_too_hot_or_cold());
        features.set(FeatureId::TEMPERATURE_THRESHOLD, TEMPERATURE_KELVIN.into(), false);
        assert!(features.is_too_hot_or_cold());
    }
}
