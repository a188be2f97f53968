//! The state of a row's drives over its rounds, and what of it speaks against the figures.

use super::RoundResult;
use super::figures::significant;
use super::marks::{Mark, MarkKind};
use super::model::{Drive, PcieLink, Row};
use crate::workload::units::format_size;
use nvpoll_engine::{Condition, Health};
use serde::{Deserialize, Serialize};

/// The state of one drive, read before and after each round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveState {
    /// As named by the user.
    pub target: String,
    /// Lowest and highest composite temperature that was read, in degrees Celsius.
    pub temperature_c: Option<[i32; 2]>,
    /// WCTEMP: from here on the drive may slow down.
    pub warning_c: Option<i32>,
    /// CCTEMP: from here on it may stop.
    pub critical_c: Option<i32>,
    /// Critical warning bits, of any reading (SMART / Health log, byte 0).
    pub critical_warning: Option<u8>,
    /// Times that it began to throttle itself inside the rounds.
    pub throttle_transitions: Option<u64>,
    /// Seconds for which it throttled itself inside the rounds.
    pub throttle_s: Option<u64>,
    /// Minutes above the warning temperature inside the rounds.
    pub hot_minutes: Option<u64>,
    /// Writes smaller than this make the drive read, change and write.
    pub write_unit_bytes: Option<u64>,
    /// Logical blocks that held something before the first round (NUSE), and all (NSZE).
    pub allocated_blocks: Option<[u64; 2]>,
    /// Why there are no temperatures, where there should be.
    pub no_health: Option<String>,
}

/// Of each drive of `rounds`; empty where no engine said anything.
pub(super) fn of(rounds: &[&RoundResult]) -> Vec<DriveState> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let drives = first.ran.drives.iter().enumerate();
    let states: Vec<DriveState> = drives
        .map(|(index, drive)| {
            let seen = rounds.iter().filter_map(|round| round.conditions.get(index));
            seen.fold(DriveState { target: drive.target.clone(), ..DriveState::default() }, add)
        })
        .collect();
    let said_something = |state: &DriveState| {
        *state != DriveState { target: state.target.clone(), ..DriveState::default() }
    };
    if states.iter().any(said_something) { states } else { Vec::new() }
}

/// Adds what a round saw.
fn add(mut state: DriveState, [before, after]: &[Condition; 2]) -> DriveState {
    for condition in [before, after] {
        state.write_unit_bytes = state.write_unit_bytes.max(condition.write_unit_bytes);
        state.no_health = state.no_health.or_else(|| condition.no_health.clone());
        if let Some(health) = &condition.health {
            state.see(health);
        }
    }
    state.allocated_blocks = state.allocated_blocks.or(before.allocated_blocks);
    if let (Some(before), Some(after)) = (&before.health, &after.health) {
        let grew = |sum: Option<u64>, from: u64, to: u64| {
            Some(sum.unwrap_or(0).saturating_add(to.saturating_sub(from)))
        };
        state.throttle_transitions = grew(
            state.throttle_transitions,
            before.throttle_transitions,
            after.throttle_transitions,
        );
        state.throttle_s = grew(state.throttle_s, before.throttle_s, after.throttle_s);
        state.hot_minutes = grew(state.hot_minutes, before.hot_minutes, after.hot_minutes);
    }
    state
}

impl DriveState {
    /// `41 to 52 C, warns at 70 C`, or why that is not known; `None` where nothing is to be said.
    pub(super) fn temperatures(&self) -> Option<String> {
        let Some([low, high]) = self.temperature_c else {
            return self.no_health.as_ref().map(|why| format!("not available here: {why}"));
        };
        let warns = self.warning_c.map(|celsius| format!(", warns at {celsius} C"));
        Some(format!("{low} to {high} C before and after rounds{}", warns.unwrap_or_default()))
    }

    fn see(&mut self, health: &Health) {
        if let Some(now) = health.temperature_c {
            let [low, high] = self.temperature_c.unwrap_or([now; 2]);
            self.temperature_c = Some([low.min(now), high.max(now)]);
        }
        self.warning_c = self.warning_c.or(health.warning_c);
        self.critical_c = self.critical_c.or(health.critical_c);
        self.critical_warning = Some(self.critical_warning.unwrap_or(0) | health.critical_warning);
    }
}

/// What the states of a row's drives say against it.
pub(super) fn marks(row: &Row) -> Vec<Mark> {
    let states = row.drive_states.iter();
    let of_state = states.flat_map(|state| {
        [throttled(state), hot(state), warns(state), below_unit(row, state), unwritten(row, state)]
    });
    of_state.chain(row.drives.iter().map(link)).flatten().collect()
}

fn throttled(state: &DriveState) -> Option<Mark> {
    let (times, seconds) = (state.throttle_transitions?, state.throttle_s?);
    let text = format!(
        "{} slowed itself down for its heat while it was measured ({times} transitions, {seconds} s by its \
         thermal management counters): cool it, and measure again",
        state.target
    );
    (times > 0 || seconds > 0).then(|| Mark::new(MarkKind::DriveThrottled, text))
}

/// Bit 1 of the critical warning: a temperature is beyond its threshold.
const WARNS_OF_TEMPERATURE: u8 = 1 << 1;

fn hot(state: &DriveState) -> Option<Mark> {
    let above = |limit: Option<i32>| Some(state.temperature_c?[1] >= limit?);
    let is_hot = above(state.warning_c) == Some(true)
        || state.critical_warning.unwrap_or(0) & WARNS_OF_TEMPERATURE != 0
        || state.hot_minutes.unwrap_or(0) > 0;
    let degrees = |celsius: Option<i32>| {
        celsius.map_or_else(|| "not said".to_owned(), |celsius| format!("{celsius} C"))
    };
    let text = format!(
        "{} was hot: {} at the most between rounds, warning temperature {}: a drive slows down there",
        state.target,
        degrees(state.temperature_c.map(|[_, high]| high)),
        degrees(state.warning_c)
    );
    is_hot.then(|| Mark::new(MarkKind::DriveHot, text))
}

/// The other bits of the critical warning (SMART / Health log, byte 0).
fn warns(state: &DriveState) -> Option<Mark> {
    const BITS: [(u8, &str); 4] = [
        (1 << 0, "its spare blocks run out"),
        (1 << 2, "it is not reliable any more"),
        (1 << 3, "it takes no more writes"),
        (1 << 4, "its backup of volatile memory failed"),
    ];
    let bits = state.critical_warning?;
    let said: Vec<&str> =
        BITS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, words)| *words).collect();
    let text = format!("{} warns: {}", state.target, said.join(", "));
    (!said.is_empty()).then(|| Mark::new(MarkKind::DriveWarns, text))
}

/// Writes of less than the drive's own unit.
fn below_unit(row: &Row, state: &DriveState) -> Option<Mark> {
    // What is trimmed is not written.
    let rw = row.workload.rw;
    let unit = state.write_unit_bytes.filter(|_| rw.writes() && !rw.trims())?;
    let least = match &row.workload.bssplit {
        Some(split) => split.parts(true).iter().map(|(bytes, _)| *bytes).min()?,
        None => row.workload.bs_bytes,
    };
    let text = format!(
        "writes of {} are below the unit in which {} writes ({}, NPWG or the kernel's minimum_io_size): it \
         reads, changes and writes more than was asked",
        format_size(least.into()),
        state.target,
        format_size(unit)
    );
    (u64::from(least) < unit).then(|| Mark::new(MarkKind::BelowWriteUnit, text))
}

/// Reads of a drive part of which holds nothing.
fn unwritten(row: &Row, state: &DriveState) -> Option<Mark> {
    let [used, all] = state.allocated_blocks.filter(|_| row.workload.rw.reads())?;
    let free_pct = (1.0 - used as f64 / all as f64) * 100.0;
    let text = format!(
        "{} says that {} % of its blocks hold nothing (NUSE {used} of {all}, before the first round): reads of \
         those may be answered without its flash; write it once",
        state.target,
        significant(free_pct, 2)
    );
    (free_pct >= UNWRITTEN_PCT_MIN).then(|| Mark::new(MarkKind::NeverWritten, text))
}

/// Part of a drive that may hold nothing before it is spoken of, in percent.
const UNWRITTEN_PCT_MIN: f64 = 1.0;

fn link(drive: &Drive) -> Option<Mark> {
    let link @ PcieLink { mt_s, lanes, mt_s_max, lanes_max } = drive.link?;
    let words = |mt_s: u32, lanes: u8| format!("{} GT/s x{lanes}", f64::from(mt_s) / 1000.0);
    let text = format!(
        "{}: its PCIe link runs at {} and the drive can do {}: look at the slot, its bifurcation and the \
         firmware's settings",
        drive.target,
        words(mt_s, lanes),
        words(mt_s_max, lanes_max)
    );
    link.is_below().then(|| Mark::new(MarkKind::PcieLink, text))
}

impl PcieLink {
    /// Whether it is slower than the drive could have it.
    fn is_below(self) -> bool {
        self.mt_s < self.mt_s_max || self.lanes < self.lanes_max
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::workload::{Rw, Workload};

    fn health(temperature_c: i32) -> Health {
        Health {
            temperature_c: Some(temperature_c),
            warning_c: Some(70),
            critical_c: Some(80),
            throttle_transitions: 12,
            throttle_s: 340,
            ..Health::default()
        }
    }

    fn condition(health: Health) -> Condition {
        Condition { health: Some(health), ..Condition::default() }
    }

    /// Kinds of the marks of a row of one drive with two rounds, whose second has `conditions`.
    fn kinds(rw: Rw, conditions: [Condition; 2]) -> Vec<MarkKind> {
        let workload = Workload::new(rw, 4096, 8);
        let mut rounds = [1, 2].map(|number| sample::round(number, &workload, "vfio", 1000, 8));
        rounds[0].conditions = vec![[condition(health(40)), condition(health(45))]];
        rounds[1].conditions = vec![conditions];
        let row =
            super::super::Report::assemble(sample::plan(), sample::environment(), &rounds, true)
                .rows
                .remove(0);
        marks(&row).into_iter().map(|mark| mark.kind).collect()
    }

    #[test]
    fn a_cool_drive_has_no_marks_however_often_it_throttled_before() {
        let cool = [condition(health(45)), condition(health(69))];
        assert_eq!(kinds(Rw::RandRead, cool), []);
    }

    #[test]
    fn heat_and_throttling_inside_the_rounds_are_marked() {
        let after = |change: fn(&mut Health)| {
            let mut hot = health(60);
            change(&mut hot);
            kinds(Rw::RandRead, [condition(health(50)), condition(hot)])
        };
        assert_eq!(after(|hot| hot.temperature_c = Some(70)), [MarkKind::DriveHot]);
        assert_eq!(after(|hot| hot.critical_warning = 2), [MarkKind::DriveHot]);
        assert_eq!(after(|hot| hot.hot_minutes = 1), [MarkKind::DriveHot]);
        assert_eq!(after(|hot| hot.throttle_transitions = 13), [MarkKind::DriveThrottled]);
        assert_eq!(after(|hot| hot.throttle_s = 341), [MarkKind::DriveThrottled]);
        assert_eq!(after(|hot| hot.critical_warning = 0b1101), [MarkKind::DriveWarns]);
        // A counter that starts over is no throttling.
        assert_eq!(after(|hot| hot.throttle_s = 0), []);
    }

    #[test]
    fn what_is_not_said_is_not_marked() {
        let nothing = Condition { no_health: Some("refused".into()), ..Condition::default() };
        assert_eq!(kinds(Rw::RandWrite, [nothing.clone(), nothing]), []);
    }

    #[test]
    fn writes_below_the_drives_unit_are_marked_and_reads_are_not() {
        let unit = |bytes| Condition { write_unit_bytes: Some(bytes), ..Condition::default() };
        let both = |bytes| [unit(bytes), unit(bytes)];
        assert_eq!(kinds(Rw::RandWrite, both(16_384)), [MarkKind::BelowWriteUnit]);
        assert_eq!(kinds(Rw::RandRw, both(8192)), [MarkKind::BelowWriteUnit]);
        assert_eq!(kinds(Rw::RandWrite, both(4096)), []);
        assert_eq!(kinds(Rw::RandRead, both(16_384)), []);
        assert_eq!(kinds(Rw::RandTrim, both(16_384)), []);
    }

    #[test]
    fn reads_of_a_drive_that_holds_little_are_marked() {
        let holds =
            |used| Condition { allocated_blocks: Some([used, 1000]), ..Condition::default() };
        let both = |used| [holds(used), holds(1000)];
        assert_eq!(kinds(Rw::RandRead, both(500)), [MarkKind::NeverWritten]);
        assert_eq!(kinds(Rw::RandRead, both(995)), []);
        assert_eq!(kinds(Rw::RandWrite, both(500)), []);
    }

    #[test]
    fn a_link_below_what_the_drive_can_do_is_marked() {
        let of = |mt_s, lanes| {
            let full = PcieLink { mt_s, lanes, mt_s_max: 16_000, lanes_max: 4 };
            link(&Drive { link: Some(full), ..sample::drive("0000:01:00.0") })
        };
        assert_eq!(of(16_000, 4), None);
        let text = of(8_000, 2).unwrap().text;
        assert!(text.contains("8 GT/s x2 and the drive can do 16 GT/s x4"), "{text}");
        assert!(of(16_000, 2).is_some() && of(2_500, 4).unwrap().text.contains("2.5 GT/s"));
        assert_eq!(link(&sample::drive("x")), None);
    }

    #[test]
    fn temperatures_are_of_all_readings_and_counters_of_the_rounds_alone() {
        let workload = Workload::new(Rw::RandRead, 4096, 8);
        let mut round = sample::round(1, &workload, "vfio", 1000, 8);
        let mut after = health(52);
        (after.throttle_transitions, after.throttle_s) = (14, 350);
        round.conditions = vec![[condition(health(41)), condition(after)]];
        let states = of(&[&round, &round]);
        assert_eq!(states[0].temperature_c, Some([41, 52]));
        assert_eq!((states[0].throttle_transitions, states[0].throttle_s), (Some(4), Some(20)));
        round.conditions = vec![[Condition::default(), Condition::default()]];
        assert_eq!(of(&[&round]), [], "nothing was said");
    }
}
