//! Where the time of an I/O goes, stage by stage, as `--instruments` sees it.

use super::{Direction, Recorder};

/// The stages of an I/O on the userspace driver, in the order in which it passes them. Each begins
/// where the one before it ends, so that they add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the first entry of its batch until its doorbell was written.
    Build,
    /// From the doorbell to the last look that found its completion missing.
    Device,
    /// From that look to the one that found it: it came in between.
    Detect,
    /// From that look until the whole batch was taken.
    Reap,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Build, Self::Device, Self::Detect, Self::Reap];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Device => "device",
            Self::Detect => "detect",
            Self::Reap => "reap",
        }
    }
}

/// What the instruments of a run wrote down.
#[derive(Clone, Debug, Default)]
pub struct StageRecorder {
    stages: [Recorder; Stage::ALL.len()],
    /// I/Os sent, and passes that sent any.
    sent: u64,
    sends: u64,
}

impl StageRecorder {
    /// Counts one I/O by its stages in ticks.
    #[inline(always)]
    pub fn record(&mut self, ticks: [u64; Stage::ALL.len()]) {
        for (recorder, ticks) in self.stages.iter_mut().zip(ticks) {
            // Which way data moved is the latency's matter.
            recorder.record(Direction::Read, ticks);
        }
    }

    /// Counts a pass that sent `ios`.
    #[inline(always)]
    pub fn record_send(&mut self, ios: usize) {
        self.sends += 1;
        self.sent += ios as u64;
    }

    /// Adds what another saw.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.stages.iter_mut().zip(&other.stages) {
            ours.merge(theirs);
        }
        self.sent = self.sent.saturating_add(other.sent);
        self.sends = self.sends.saturating_add(other.sends);
    }

    /// One stage of all I/Os.
    pub fn stage(&self, stage: Stage) -> &Recorder {
        let [build, device, detect, reap] = &self.stages;
        match stage {
            Stage::Build => build,
            Stage::Device => device,
            Stage::Detect => detect,
            Stage::Reap => reap,
        }
    }

    /// I/Os that a pass sent, on the mean over passes that sent any.
    pub fn batch_mean(&self) -> Option<f64> {
        (self.sends > 0).then(|| self.sent as f64 / self.sends as f64)
    }
}

/// Doorbell writes, and the I/Os that they were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doorbells {
    /// Of both doorbells together.
    pub writes: u64,
    /// I/Os that completed meanwhile.
    pub ios: u64,
}

/// What the instruments saw.
#[derive(Clone, Debug)]
pub struct InstrumentsSeen {
    /// Stage by stage.
    pub stages: StageRecorder,
    /// What they cost each I/O, measured on this machine in batches as large as these were.
    pub cost_ns_per_io: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_is_as_if_recorded_by_one() {
        let mut ours = StageRecorder::default();
        assert_eq!(ours.batch_mean(), None);
        ours.record([1, 20, 300, 4000]);
        ours.record_send(1);
        let mut theirs = StageRecorder::default();
        theirs.record([3, 40, 500, 6000]);
        theirs.record_send(4);
        ours.merge(&theirs);
        let means = Stage::ALL.map(|stage| ours.stage(stage).latency(None, 1.0).unwrap().mean_ns);
        assert_eq!(means, [2.0, 30.0, 400.0, 5000.0]);
        assert_eq!(ours.batch_mean(), Some(2.5));
    }
}
