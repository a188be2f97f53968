//! What a zoned namespace says of its zones.

use nvpoll_nvme::{Commands, Controller, Namespace, NvmeError, Zones};
use nvpoll_pci::Function;
use nvpoll_spec::ZoneState;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Zones that are counted by state; a namespace with more is not read through.
pub(crate) struct Report {
    states: BTreeMap<ZoneState, u64>,
    /// Least and most blocks of a zone that may be written.
    capacity_blocks: (u64, u64),
}

impl Report {
    fn read<F: Function>(
        controller: &Arc<Controller<F>>,
        namespace: &Namespace,
    ) -> Result<Self, NvmeError> {
        let mut commands = Commands::new(controller, namespace, false)?;
        let mut report = Self { states: BTreeMap::new(), capacity_blocks: (u64::MAX, 0) };
        commands.report_zones(|zone| {
            let (least, most) = &mut report.capacity_blocks;
            *least = zone.capacity_blocks.min(*least);
            *most = zone.capacity_blocks.max(*most);
            *report.states.entry(zone.state()).or_default() += 1;
        })?;
        Ok(report)
    }
}

/// Names and values for the namespace's section.
pub(super) fn facts<F: Function>(
    controller: &Arc<Controller<F>>,
    namespace: &Namespace,
    zones: &Zones,
) -> Vec<(String, String)> {
    let size = |blocks: u64| {
        let bytes = u128::from(blocks) << namespace.block_log2;
        format!("{blocks} blocks, {bytes} bytes")
    };
    let most = |limit: Option<u32>| limit.map_or("no limit".to_owned(), |most| most.to_string());
    let append = zones.append_bytes_max;
    let mut facts =
        vec![("zones", zones.count.to_string()), ("ZSZE (zone size)", size(zones.zone_blocks))];
    let report = Report::read(controller, namespace);
    if let Ok(Report { capacity_blocks: (least, largest), .. }) = &report {
        let text =
            if least == largest { size(*least) } else { format!("{least} to {largest} blocks") };
        facts.push(("ZCAP (zone capacity)", text));
    }
    facts.extend([
        (
            "MAR, MOR (active, open)",
            format!("{}, {}", most(zones.active_max), most(zones.open_max)),
        ),
        (
            "ZASL (largest append)",
            append.map_or_else(|| "as MDTS".to_owned(), |bytes| format!("{bytes} bytes")),
        ),
        ("reads across zones", super::yes(zones.reads_cross)),
        (
            "zone states",
            match report {
                Err(error) => format!("not read: {error}"),
                Ok(report) => {
                    let states = report.states.iter();
                    let states: Vec<_> =
                        states.map(|(state, count)| format!("{count} {state}")).collect();
                    states.join(", ")
                }
            },
        ),
    ]);
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
