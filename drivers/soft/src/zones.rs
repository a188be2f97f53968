//! Zones: their states and write pointers (Zoned Namespace Command Set 1.1, §2.1.1.2), and the commands on them.

use crate::device::{Device, Outcome};
use crate::nvm::{NSID, media_error};
use crate::options::SoftOptions;
use crate::shared::Shared;
use nvpoll_spec::{
    NvmOpcode, Status, SubmissionEntry, ZONE_REPORT_HEADER_BYTES, ZoneAction, ZoneDescriptor,
    ZoneState,
};
use zerocopy::IntoBytes;

/// Select All in CDW13 of Zone Management Send, and Partial Report in that of Receive.
const SELECT_ALL: u32 = 1 << 8;
const PARTIAL: u32 = 1 << 16;
/// ZRASF: which states a report has, by its value; 0 is all.
const REPORTED: [ZoneState; 7] = [
    ZoneState::EMPTY,
    ZoneState::IMPLICITLY_OPENED,
    ZoneState::EXPLICITLY_OPENED,
    ZoneState::CLOSED,
    ZoneState::FULL,
    ZoneState::READ_ONLY,
    ZoneState::OFFLINE,
];

#[derive(Clone, Copy)]
struct Zone {
    state: ZoneState,
    /// Blocks that are written.
    written: u64,
}

/// All zones of the namespace.
pub(crate) struct Zones {
    zones: Vec<Zone>,
    zone_blocks: u64,
    capacity_blocks: u64,
    active_max: u32,
    open_max: u32,
}

impl Zones {
    /// `None` where the namespace has no zones.
    pub(crate) fn new(options: &SoftOptions) -> Option<Self> {
        let zoned = options.zoned;
        let count = options.size_bytes.checked_div(zoned.zone_bytes)?;
        let lba_bytes = u64::from(options.lba_bytes);
        let zone_blocks = zoned.zone_bytes / lba_bytes;
        let capacity_blocks = match zoned.capacity_bytes {
            0 => zone_blocks,
            bytes => bytes / lba_bytes,
        };
        let limit = |zones: u32| if zones == 0 { u32::MAX } else { zones };
        Some(Self {
            zones: vec![Zone { state: ZoneState::EMPTY, written: 0 }; count as usize],
            zone_blocks,
            capacity_blocks,
            active_max: limit(zoned.active_max),
            open_max: limit(zoned.open_max),
        })
    }

    fn count(&self, states: &[ZoneState]) -> u32 {
        self.zones.iter().filter(|zone| states.contains(&zone.state)).count() as u32
    }

    fn index(&self, lba: u64) -> usize {
        (lba / self.zone_blocks) as usize
    }

    fn zone(&mut self, index: usize) -> Result<&mut Zone, Status> {
        self.zones.get_mut(index).ok_or(Status::LBA_OUT_OF_RANGE)
    }

    /// Whether a read stays in the zone that it begins in.
    fn check_read(&self, lba: u64, blocks: u64) -> Result<(), Status> {
        if lba % self.zone_blocks + blocks <= self.zone_blocks {
            return Ok(());
        }
        Err(Status::ZONE_BOUNDARY)
    }

    /// Whether a write may begin at `lba`; opens the zone for it.
    fn admit(&mut self, lba: u64, blocks: u64) -> Result<(), Status> {
        let (index, at) = (self.index(lba), lba % self.zone_blocks);
        let capacity_blocks = self.capacity_blocks;
        let zone = *self.zone(index)?;
        if zone.state == ZoneState::FULL {
            return Err(Status::ZONE_FULL);
        }
        if at + blocks > capacity_blocks {
            return Err(Status::ZONE_BOUNDARY);
        }
        if at != zone.written {
            return Err(Status::ZONE_INVALID_WRITE);
        }
        if matches!(zone.state, ZoneState::EMPTY | ZoneState::CLOSED) {
            self.open(index, ZoneState::IMPLICITLY_OPENED)?;
        }
        Ok(())
    }

    /// After a write that was admitted.
    fn advance(&mut self, lba: u64, blocks: u64) {
        let (index, capacity_blocks) = (self.index(lba), self.capacity_blocks);
        if let Ok(zone) = self.zone(index) {
            zone.written += blocks;
            if zone.written == capacity_blocks {
                zone.state = ZoneState::FULL;
            }
        }
    }

    /// Opens an empty or closed zone. Where too many are open, one that a write opened is closed for it.
    fn open(&mut self, index: usize, to: ZoneState) -> Result<(), Status> {
        use ZoneState as S;
        let open = [S::IMPLICITLY_OPENED, S::EXPLICITLY_OPENED];
        let active = [S::IMPLICITLY_OPENED, S::EXPLICITLY_OPENED, S::CLOSED];
        if self.zone(index)?.state == S::EMPTY && self.count(&active) >= self.active_max {
            return Err(Status::ZONE_TOO_MANY_ACTIVE);
        }
        if self.count(&open) >= self.open_max {
            let other = self.zones.iter_mut().find(|zone| zone.state == S::IMPLICITLY_OPENED);
            other.ok_or(Status::ZONE_TOO_MANY_OPEN)?.state = S::CLOSED;
        }
        self.zone(index)?.state = to;
        Ok(())
    }

    /// One zone's transition; a zone that is in the wanted state already stays.
    fn act(&mut self, index: usize, action: ZoneAction) -> Result<(), Status> {
        use ZoneState as S;
        let state = self.zone(index)?.state;
        match (action, state) {
            (ZoneAction::OPEN, S::EMPTY | S::CLOSED) => self.open(index, S::EXPLICITLY_OPENED)?,
            (ZoneAction::OPEN, S::IMPLICITLY_OPENED | S::EXPLICITLY_OPENED) => {
                self.zone(index)?.state = S::EXPLICITLY_OPENED;
            }
            (ZoneAction::CLOSE, S::IMPLICITLY_OPENED | S::EXPLICITLY_OPENED | S::CLOSED) => {
                self.zone(index)?.state = S::CLOSED;
            }
            (ZoneAction::FINISH, _) => self.zone(index)?.state = S::FULL,
            (ZoneAction::RESET, _) => {
                *self.zone(index)? = Zone { state: S::EMPTY, written: 0 };
            }
            (ZoneAction::OPEN | ZoneAction::CLOSE, _) => {
                return Err(Status::ZONE_INVALID_TRANSITION);
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    /// The zones that an action with Select All is for.
    fn selected(&self, action: ZoneAction) -> Result<Vec<usize>, Status> {
        use ZoneState as S;
        let from: &[S] = match action {
            ZoneAction::OPEN => &[S::CLOSED],
            ZoneAction::CLOSE => &[S::IMPLICITLY_OPENED, S::EXPLICITLY_OPENED],
            ZoneAction::FINISH => &[S::IMPLICITLY_OPENED, S::EXPLICITLY_OPENED, S::CLOSED],
            ZoneAction::RESET => &[S::IMPLICITLY_OPENED, S::EXPLICITLY_OPENED, S::CLOSED, S::FULL],
            _ => return Err(Status::INVALID_FIELD),
        };
        let zones = self.zones.iter().enumerate();
        let selected: Vec<usize> =
            zones.filter(|(_, zone)| from.contains(&zone.state)).map(|(index, _)| index).collect();
        let explicit = self.count(&[S::EXPLICITLY_OPENED]) as usize;
        if action == ZoneAction::OPEN && explicit + selected.len() > self.open_max as usize {
            return Err(Status::ZONE_TOO_MANY_OPEN);
        }
        Ok(selected)
    }

    fn descriptor(&self, index: usize, zone: &Zone) -> ZoneDescriptor {
        let start = index as u64 * self.zone_blocks;
        ZoneDescriptor::sequential(zone.state, start, self.capacity_blocks, start + zone.written)
    }
}

impl Device {
    /// A read or write of a zoned namespace, whose range was not checked yet.
    pub(crate) fn zoned_transfer(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        write: bool,
    ) -> Result<(), Outcome> {
        crate::nvm::range(shared, entry)?;
        let Some(zones) = self.zones.as_mut() else {
            return Err(Outcome::invalid(Status::INVALID_OPCODE));
        };
        let (lba, blocks) = (entry.lba(), u64::from(entry.blocks_z()) + 1);
        if !write {
            zones.check_read(lba, blocks).map_err(Outcome::invalid)?;
            return self.transfer(shared, entry, false);
        }
        zones.admit(lba, blocks).map_err(Outcome::failed)?;
        self.transfer(shared, entry, true)?;
        if let Some(zones) = &mut self.zones {
            zones.advance(lba, blocks);
        }
        Ok(())
    }

    /// The commands that zoned namespaces alone have.
    pub(crate) fn zone_command(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Outcome> {
        if entry.nsid != NSID {
            return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        }
        if entry.lba() >= shared.options.size_bytes / u64::from(shared.options.lba_bytes) {
            return Err(Outcome::invalid(Status::LBA_OUT_OF_RANGE));
        }
        match NvmOpcode(entry.opcode) {
            NvmOpcode::ZONE_APPEND => self.append(shared, entry),
            NvmOpcode::ZONE_MANAGEMENT_SEND => self.manage(shared, entry),
            NvmOpcode::ZONE_MANAGEMENT_RECEIVE => self.report(shared, entry),
            _ => Err(Outcome::invalid(Status::INVALID_OPCODE)),
        }
    }

    fn append(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let invalid = || Outcome::invalid(Status::INVALID_FIELD);
        let zones = self.zones.as_ref().ok_or_else(invalid)?;
        let zone = zones.zones.get(zones.index(entry.lba())).ok_or_else(invalid)?;
        if !entry.lba().is_multiple_of(zones.zone_blocks) {
            return Err(invalid());
        }
        // A full zone takes none, wherever that would go.
        let lba = match zone.state {
            ZoneState::FULL => entry.lba(),
            _ => entry.lba() + zone.written,
        };
        let mut write = *entry;
        (write.cdw10, write.cdw11) = (lba as u32, (lba >> 32) as u32);
        self.zoned_transfer(shared, &write, true)?;
        Ok(Outcome::with(lba as u32))
    }

    fn manage(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let action = ZoneAction(entry.cdw13 as u8);
        let invalid = || Outcome::invalid(Status::INVALID_FIELD);
        let zones = self.zones.as_mut().ok_or_else(invalid)?;
        let selected = if entry.cdw13 & SELECT_ALL != 0 {
            zones.selected(action).map_err(Outcome::failed)?
        } else if entry.lba().is_multiple_of(zones.zone_blocks) {
            vec![zones.index(entry.lba())]
        } else {
            return Err(invalid());
        };
        let zone_bytes = shared.options.zoned.zone_bytes;
        for index in selected {
            zones.act(index, action).map_err(Outcome::failed)?;
            if action == ZoneAction::RESET {
                let done = self.media.zero(index as u64 * zone_bytes, zone_bytes);
                done.map_err(|status| media_error(shared, status))?;
            }
        }
        Ok(Outcome::DONE)
    }

    fn report(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let bytes = (u64::from(entry.cdw12) + 1) * 4;
        let wanted = usize::from((entry.cdw13 >> 8) as u8);
        let invalid = || Outcome::invalid(Status::INVALID_FIELD);
        let zones = self.zones.as_ref().ok_or_else(invalid)?;
        let too_long = shared.options.transfer_bytes_max().is_some_and(|most| bytes > most);
        if entry.cdw13 as u8 != 0 || wanted > REPORTED.len() || too_long {
            return Err(invalid());
        }
        let state = wanted.checked_sub(1).and_then(|index| REPORTED.get(index));
        let from = zones.index(entry.lba());
        let matching = zones.zones.iter().enumerate().skip(from);
        let matching = matching.filter(|(_, zone)| state.is_none_or(|state| zone.state == *state));
        let all = matching.clone().count() as u64;
        let room = bytes.saturating_sub(ZONE_REPORT_HEADER_BYTES as u64)
            / size_of::<ZoneDescriptor>() as u64;
        let held = all.min(room);
        let mut page = vec![0_u8; ZONE_REPORT_HEADER_BYTES];
        let told = if entry.cdw13 & PARTIAL != 0 { held } else { all };
        if let Some(count) = page.first_chunk_mut::<8>() {
            *count = told.to_le_bytes();
        }
        for (index, zone) in matching.take(held as usize) {
            page.extend_from_slice(zones.descriptor(index, zone).as_bytes());
        }
        let words = page.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let words: Vec<u64> = words.collect();
        self.reach(shared, entry, bytes, true)?;
        let dwords = (bytes / 4) as usize;
        let filled = dwords.min(2 * words.len());
        self.segments.fill_host(&self.view, &words, filled);
        self.segments.zero_host(&self.view, dwords - filled);
        Ok(Outcome::DONE)
    }
}
