//! Zoned namespaces (NVM Express Zoned Namespace Command Set Specification 1.1): which namespaces have zones, what
//! the zones are, and the commands that report, manage and append to them.

use super::{Commands, zero_based};
use crate::limits::ZONES_MAX;
use crate::registers::command_sets;
use crate::{Controller, Namespace, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::{
    Admin, Cns, CommandSet, IDENTIFY_BYTES, NamespaceIdentity, ZONE_REPORT_HEADER_BYTES,
    ZoneAction, ZoneDescriptor, ZoneState, Zoned, ZonedNamespaceIdentity, zones_max,
};
use zerocopy::FromBytes;

/// Longest zone report that is asked for in one command, in bytes.
const REPORT_BYTES_MAX: usize = 64 << 10;

/// What a zoned namespace's zones are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// ZSZE: blocks from a zone's start to the next one's; at least one.
    pub zone_blocks: u64,
    /// Zones in the namespace.
    pub count: u64,
    /// MAR: most zones that are open or closed at a time; `None` is no limit.
    pub active_max: Option<u32>,
    /// MOR: most zones that are open at a time; `None` is no limit.
    pub open_max: Option<u32>,
    /// ZASL: most bytes of a Zone Append; `None` is as many as MDTS allows.
    pub append_bytes_max: Option<u64>,
    /// OZCS bit 0: a read may go beyond the zone that it begins in.
    pub reads_cross: bool,
}

impl<F: Function> Controller<F> {
    /// The command set of a namespace (Namespace Identification Descriptor list). Where the controller has
    /// one alone, nothing is asked.
    ///
    /// # Errors
    /// When the controller refuses, or has several sets and does not say which the namespace has.
    pub fn command_set(&self, nsid: u32) -> Result<CommandSet, NvmeError> {
        if command_sets(self.capabilities()) == 0 {
            return Ok(CommandSet::NVM);
        }
        let name = format!("Identify ({}, NSID {nsid})", Cns::DESCRIPTORS);
        let list: [u8; IDENTIFY_BYTES] =
            self.read_page(&name, Admin::identify(Cns::DESCRIPTORS, nsid))?;
        CommandSet::of_descriptors(&list).ok_or_else(|| {
            self.unsupported(format!(
                "the controller has several command sets (CAP.CSS bit 6) and does not say which namespace {nsid} has (no descriptor of type 4h)"
            ))
        })
    }

    /// What the zones of `namespace` are, of whose Identify page `page` is.
    pub(crate) fn zones(
        &self,
        namespace: &Namespace,
        page: &NamespaceIdentity,
    ) -> Result<Zones, NvmeError> {
        let nsid = namespace.nsid;
        let (set, own) = (CommandSet::ZONED, Cns::SET_NAMESPACE);
        let name = format!("Identify ({own}, {set}, NSID {nsid})");
        let identity: ZonedNamespaceIdentity =
            self.read_page(&name, Zoned::identify(own, set, nsid))?;
        let name = format!("Identify ({}, {set})", Cns::SET_CONTROLLER);
        let [append_log2]: [u8; 1] =
            self.read_page(&name, Zoned::identify(Cns::SET_CONTROLLER, set, 0))?;
        let format = page.format_index().and_then(|index| identity.formats.get(index));
        let zone_blocks = format.map_or(0, |format| format.zone_blocks);
        if zone_blocks == 0 || zone_blocks > namespace.blocks {
            return Err(self.unsupported(format!(
                "namespace {nsid} says that its zones have {zone_blocks} blocks (ZSZE), and it has {}; its Identify page is not valid",
                namespace.blocks
            )));
        }
        let (page_bytes_min, _) = self.capabilities().page_bytes();
        Ok(Zones {
            zone_blocks,
            count: namespace.blocks.div_ceil(zone_blocks),
            active_max: zones_max(identity.active_max_z),
            open_max: zones_max(identity.open_max_z),
            append_bytes_max: (append_log2 != 0)
                .then(|| page_bytes_min.checked_shl(append_log2.into()).unwrap_or(u64::MAX)),
            reads_cross: identity.reads_cross_zones(),
        })
    }
}

impl<F: Function> Commands<F> {
    /// Has the controller report every zone, in order (§3.4.2).
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] for a namespace without zones, for more than [`ZONES_MAX`], and for a report
    /// that cannot be; and when the controller reports an error.
    pub fn report_zones(&mut self, mut each: impl FnMut(&ZoneDescriptor)) -> Result<(), NvmeError> {
        let zones = self.zoned("Zone Management Receive")?;
        if zones.count > ZONES_MAX {
            return Err(self.controller.limit(format!(
                "the namespace has {} zones; at most {ZONES_MAX} are read",
                zones.count
            )));
        }
        let mut next = 0;
        while next < zones.count {
            for zone in self.report_from(next, &zones)? {
                each(&zone);
                next += 1;
            }
        }
        Ok(())
    }

    /// The zone that has the block `lba`.
    ///
    /// # Errors
    /// As of [`report_zones`](Self::report_zones); and when there is no such block.
    pub fn zone(&mut self, lba: u64) -> Result<ZoneDescriptor, NvmeError> {
        let zones = self.zoned("Zone Management Receive")?;
        self.check_range("Zone Management Receive", lba, 1)?;
        let zone = self.report_from(lba / zones.zone_blocks, &zones)?.into_iter().next();
        zone.ok_or_else(|| self.controller.unsupported("a zone report was empty".into()))
    }

    /// One command's report from zone `index` on: at least one zone, each of them checked.
    fn report_from(&mut self, index: u64, zones: &Zones) -> Result<Vec<ZoneDescriptor>, NvmeError> {
        const NAME: &str = "Zone Management Receive";
        let mut page = vec![0; REPORT_BYTES_MAX.min(self.data_bytes_max as usize)];
        // What the device leaves unwritten is no zone.
        self.pair.fill(0, &page);
        let entry =
            Zoned::report(self.namespace.nsid, index * zones.zone_blocks, page.len() as u32);
        self.send(NAME, entry, page.len())?;
        self.pair.copy_out(0, &mut page);
        let (header, list) = page.split_at_checked(ZONE_REPORT_HEADER_BYTES).unwrap_or_default();
        let told = u64::read_from_prefix(header).map_or(0, |(count, _)| count);
        let descriptors = list.chunks_exact(size_of::<ZoneDescriptor>());
        let held = (descriptors.len() as u64).min(zones.count - index);
        let count = told.min(held) as usize;
        let read: Vec<ZoneDescriptor> = descriptors
            .take(count)
            .filter_map(|bytes| ZoneDescriptor::read_from_bytes(bytes).ok())
            .collect();
        if told == 0 {
            return Err(self.controller.unsupported(format!(
                "the report of the zones from number {index} on, of {}, names none",
                zones.count
            )));
        }
        for (number, zone) in (index..).zip(&read) {
            if !is_sound(zone, number, zones) {
                return Err(self.controller.unsupported(format!(
                    "the report of zone {number} cannot be: {} from block {} on with a capacity of {} blocks and its write pointer at {}; zones have {} blocks",
                    zone.state(), zone.start, zone.capacity_blocks, zone.write_pointer, zones.zone_blocks
                )));
            }
        }
        Ok(read)
    }

    /// Opens, closes, finishes or resets the zone that begins at block `start`, or takes it offline (§3.4.3). After
    /// a reset nothing of what it held is left.
    ///
    /// # Errors
    /// When there are no zones, none begins at `start`, writing is not allowed, or the controller reports an error,
    /// such as a state that the action does not start from.
    pub fn manage_zone(&mut self, start: u64, action: ZoneAction) -> Result<(), NvmeError> {
        self.zone_start(&action.to_string(), start)?;
        self.may_write(&action.to_string())?;
        self.send(&action.to_string(), Zoned::manage(self.namespace.nsid, start, action), 0)
    }

    /// The same on all zones whose state the action starts from.
    ///
    /// # Errors
    /// When there are no zones, writing is not allowed, or the controller reports an error.
    pub fn manage_all_zones(&mut self, action: ZoneAction) -> Result<(), NvmeError> {
        self.zoned(&action.to_string())?;
        self.may_write(&action.to_string())?;
        self.send(&action.to_string(), Zoned::manage_all(self.namespace.nsid, action), 0)
    }

    /// Appends to the zone that begins at block `start`, and returns where the data went (§3.4.1).
    ///
    /// # Errors
    /// When there are no zones, none begins at `start`, writing is not allowed, the length does not fit (ZASL), or the
    /// controller reports an error.
    pub fn append(&mut self, start: u64, data: &[u8]) -> Result<u64, NvmeError> {
        const NAME: &str = "Zone Append";
        let zones = self.zone_start(NAME, start)?;
        self.may_write(NAME)?;
        let blocks = self.blocks_of(NAME, data)?;
        if !(1..=1 << 16).contains(&blocks)
            || zones.append_bytes_max.is_some_and(|most| data.len() as u64 > most)
        {
            return Err(self.controller.limit(format!(
                "{NAME} of {} bytes was not sent: it takes 1 to 65536 blocks, and at most {} bytes (ZASL)",
                data.len(),
                zones.append_bytes_max.unwrap_or_else(|| self.data_bytes_max.into())
            )));
        }
        self.pair.fill(0, data);
        let entry = Zoned::append(self.namespace.nsid, start, zero_based(blocks));
        let lba = self.pair.run_alone(NAME, entry, data.len(), crate::limits::COMMAND_WAIT)?;
        let end = start.saturating_add(zones.zone_blocks);
        if lba < start || lba.checked_add(blocks.into()).is_none_or(|behind| behind > end) {
            return Err(self.controller.unsupported(format!(
                "{NAME} to the zone from block {start} on says that it wrote {blocks} blocks at {lba}, which is outside of it"
            )));
        }
        Ok(lba)
    }

    fn zoned(&self, name: &str) -> Result<Zones, NvmeError> {
        self.namespace.zones.ok_or_else(|| {
            let nsid = self.namespace.nsid;
            self.controller
                .unsupported(format!("{name} was not sent: namespace {nsid} has no zones"))
        })
    }

    fn zone_start(&self, name: &str, start: u64) -> Result<Zones, NvmeError> {
        let zones = self.zoned(name)?;
        if start < self.namespace.blocks && start.is_multiple_of(zones.zone_blocks) {
            return Ok(zones);
        }
        Err(self.controller.limit(format!(
            "{name} was not sent: no zone begins at block {start}; the namespace has {} zones of {} blocks",
            zones.count, zones.zone_blocks
        )))
    }
}

/// Whether a descriptor can be that of zone `number`.
fn is_sound(zone: &ZoneDescriptor, number: u64, zones: &Zones) -> bool {
    let has_pointer =
        !matches!(zone.state(), ZoneState::FULL | ZoneState::READ_ONLY | ZoneState::OFFLINE);
    let written = zone.write_pointer.checked_sub(zone.start);
    zone.start == number * zones.zone_blocks
        && zone.capacity_blocks <= zones.zone_blocks
        && (!has_pointer || written.is_some_and(|written| written <= zone.capacity_blocks))
}
