//! What a controller says of itself, read through whichever driver has it.

mod optional;
mod zones;

pub(crate) use optional::Transitions;

use crate::controllers::{ControllerVisitor, with_controller};
use crate::{EngineError, OpenOptions, Target};
use nvpoll_nvme::{Controller, KnownQuirk, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::{
    ControllerIdentity, ErrorLogEntry, FeatureId, FirmwareLog, NamespaceIdentity, SmartLog,
    Version, ascii_field,
};
use serde::Serialize;
use std::sync::Arc;

/// Everything that was read, in words.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Which driver and transport it was read through.
    pub through: String,
    /// In the order in which they are to be shown.
    pub sections: Vec<Section>,
}

/// Facts that belong together.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// Name and value of each.
    pub facts: Vec<(String, String)>,
}

/// The pages that an inspection is made of, whoever read them.
pub(crate) struct Pages {
    pub through: String,
    pub registers: Vec<(&'static str, String)>,
    pub controller: Box<ControllerIdentity>,
    pub namespaces: Vec<(u32, Box<NamespaceIdentity>)>,
    pub smart: Result<SmartLog, String>,
    pub errors: Result<Vec<ErrorLogEntry>, String>,
    pub firmware: Result<FirmwareLog, String>,
    pub features: Vec<(FeatureId, Option<u32>)>,
    /// `None` where the controller has none.
    pub transitions: Option<Result<Transitions, String>>,
    /// Facts of namespaces with zones.
    pub zones: Vec<(u32, Vec<(String, String)>)>,
    /// What the driver here would refuse a namespace for.
    pub refusals: Vec<(u32, String)>,
}

/// Features that are shown.
pub(crate) const FEATURES: [FeatureId; 5] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::INTERRUPT_COALESCING,
];

/// Namespaces that are read in full; the others are counted.
const NAMESPACES_SHOWN: usize = 64;

/// Reads what `target` says of itself.
///
/// # Errors
/// When it cannot be opened, or does not answer.
pub fn inspect(target: &Target, options: &OpenOptions) -> Result<Inspection, EngineError> {
    let pages = match target {
        #[cfg(target_os = "linux")]
        Target::Path(path) => crate::admin::read(path)?,
        other => with_controller(other, options, Reading)?,
    };
    Ok(describe(&pages))
}

/// Reads all pages through the userspace driver.
struct Reading;

impl ControllerVisitor for Reading {
    type Output = Pages;

    fn visit<F: Function>(self, controller: &Arc<Controller<F>>) -> Result<Pages, EngineError> {
        read(controller)
    }
}

fn read<F: Function>(controller: &Arc<Controller<F>>) -> Result<Pages, EngineError> {
    let failed = |error: NvmeError| EngineError::Failed(error.to_string());
    let capabilities = controller.capabilities();
    let (page_min, page_max) = capabilities.page_bytes();
    let mut namespaces = Vec::new();
    let (mut refusals, mut zones) = (Vec::new(), Vec::new());
    for nsid in controller.active_namespaces().map_err(failed)?.into_iter().take(NAMESPACES_SHOWN) {
        let namespace = controller.namespace(nsid);
        match controller.namespace_page(nsid) {
            Ok(page) => namespaces.push((nsid, page)),
            // A namespace of another command set has no such page.
            Err(NvmeError::Command { .. }) if namespace.is_err() => {}
            Err(error) => return Err(failed(error)),
        }
        match namespace {
            Err(error) => refusals.push((nsid, error.to_string())),
            Ok(namespace) => zones.extend(
                namespace
                    .zones
                    .map(|of_zones| (nsid, zones::facts(controller, &namespace, &of_zones))),
            ),
        }
    }
    let feature = |id| controller.feature(id).map(|value| (id, value));
    Ok(Pages {
        through: format!("userspace driver, {}", controller.function().transport()),
        registers: vec![
            ("VS", controller.version().map_err(failed)?.to_string()),
            ("CAP.MQES (queue entries)", capabilities.queue_entries_max().to_string()),
            (
                "CAP.DSTRD (doorbell stride)",
                format!("{} bytes", capabilities.doorbell_stride_bytes()),
            ),
            ("CAP.TO (ready within)", format!("{} ms", capabilities.timeout_ms())),
            (
                "CAP.MPSMIN, MPSMAX (pages)",
                format!("{page_min} to {page_max} bytes, {} used", controller.page_bytes()),
            ),
            ("CAP.CQR (contiguous queues)", yes(capabilities.contiguous_queues())),
            ("CAP.CMBS (controller memory)", yes(capabilities.controller_memory())),
            ("offered, and not used here", optional::unused(capabilities, controller.identity())),
            ("I/O queue pairs granted", controller.queues_max().to_string()),
            ("quirks", quirks_of(controller)),
        ],
        controller: Box::new(*controller.identity()),
        namespaces,
        smart: controller.smart().map_err(|error| error.to_string()),
        errors: controller.error_log().map_err(|error| error.to_string()),
        firmware: controller.firmware_log().map_err(|error| error.to_string()),
        transitions: (controller.identity().autonomous_power & 1 != 0).then(|| {
            let apst = controller.apst().map_err(|error| error.to_string())?;
            Ok((apst.enabled, apst.table.to_vec()))
        }),
        features: FEATURES.into_iter().map(feature).collect::<Result<_, _>>().map_err(failed)?,
        zones,
        refusals,
    })
}

/// What the controller needs beyond the specification, and who found out.
fn quirks_of<F: Function>(controller: &Controller<F>) -> String {
    let known = KnownQuirk::of(controller.function().ids());
    let source = known.map_or_else(String::new, |known| {
        format!(" ({}: found out by {})", known.name, known.source)
    });
    format!("{}{source}", controller.quirks())
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// ASCII as text; a byte that is none is shown escaped, not sent to a terminal.
fn text(field: &[u8]) -> String {
    match ascii_field(field) {
        Ok(text) => text.to_owned(),
        Err(raw) => raw.escape_ascii().to_string(),
    }
}

fn section<N: Into<String>>(title: impl Into<String>, facts: Vec<(N, String)>) -> Section {
    let facts = facts.into_iter().map(|(name, value)| (name.into(), value)).collect();
    Section { title: title.into(), facts }
}

fn describe(pages: &Pages) -> Inspection {
    let id = &pages.controller;
    let mut sections = vec![controller_section(id), optional::offer_section(id)];
    if !pages.registers.is_empty() {
        sections.push(section("registers", pages.registers.clone()));
    }
    for (nsid, page) in &pages.namespaces {
        let refusal = pages.refusals.iter().find(|(refused, _)| refused == nsid);
        let zones = pages.zones.iter().find(|(zoned, _)| zoned == nsid);
        let zones = zones.map_or(&[][..], |(_, facts)| facts);
        sections.push(namespace_section(*nsid, page, zones, refusal.map(|(_, why)| why.as_str())));
    }
    for (nsid, why) in &pages.refusals {
        if pages.namespaces.iter().all(|(shown, _)| shown != nsid) {
            let facts = vec![("not driven", why.clone())];
            sections.push(section(format!("namespace {nsid}"), facts));
        }
    }
    let features = pages.features.iter().map(|(id, value)| {
        let value = value.map_or_else(|| "not there".to_owned(), |value| format!("{value:#010x}"));
        (id.to_string(), value)
    });
    sections.push(section("features", features.collect()));
    let power = pages.features.iter().find(|(id, _)| *id == FeatureId::POWER_MANAGEMENT);
    let power = power.and_then(|(_, value)| *value);
    sections.push(optional::power_section(id, power, pages.transitions.as_ref()));
    sections.push(match &pages.smart {
        Ok(log) => smart_section(log),
        Err(why) => section("SMART / health log", vec![("not read", why.clone())]),
    });
    sections.push(optional::error_section(&pages.errors));
    sections.push(optional::firmware_section(&pages.firmware));
    Inspection { through: pages.through.clone(), sections }
}

fn controller_section(id: &ControllerIdentity) -> Section {
    let version = Version::from_bits(id.version);
    let mdts = match id.transfer_log2_max {
        0 => "no limit".to_owned(),
        log2 => format!("2^{log2} pages"),
    };
    section(
        "controller",
        vec![
            ("model", text(&id.model)),
            ("serial", text(&id.serial)),
            ("firmware", text(&id.firmware)),
            (
                "PCI vendor, subsystem vendor",
                format!("{:04x}, {:04x}", id.vendor, id.subsystem_vendor),
            ),
            ("NVMe version", version.to_string()),
            ("NVM subsystem", text(&id.subsystem_nqn)),
            ("controller id", id.controller_id.to_string()),
            ("MDTS (largest transfer)", mdts),
            ("NN (highest namespace)", id.namespaces.to_string()),
            ("volatile write cache", yes(id.write_cache & 1 != 0)),
            ("SGLS", format!("{:#010x}", id.sgl)),
            ("RTD3E (shutdown)", format!("{} us", id.shutdown_us)),
        ],
    )
}

fn namespace_section(
    nsid: u32,
    page: &NamespaceIdentity,
    zones: &[(String, String)],
    refusal: Option<&str>,
) -> Section {
    let format = page.format_in_use();
    let block_bytes = format.filter(|format| format.data_log2 < 32).map(|f| 1u64 << f.data_log2);
    let size = block_bytes.and_then(|bytes| page.blocks.checked_mul(bytes));
    let unknown = || "not valid".to_owned();
    let mut facts = vec![
        ("size".to_owned(), size.map_or_else(unknown, |bytes| format!("{bytes} bytes"))),
        (
            "blocks, capacity, used".to_owned(),
            format!("{}, {}, {}", page.blocks, page.capacity_blocks, page.used_blocks),
        ),
    ];
    for (index, format) in page.formats.iter().enumerate().take(usize::from(page.formats_z) + 1) {
        if format.data_log2 == 0 {
            continue;
        }
        let in_use = if page.format_index() == Some(index) { ", in use" } else { "" };
        facts.push((
            format!("LBA format {index}"),
            format!(
                "2^{} bytes, metadata {}, performance {}{in_use}",
                format.data_log2,
                format.metadata_bytes,
                format.performance & 3
            ),
        ));
    }
    facts
        .push(("NOIOB (optimal boundary)".to_owned(), format!("{} blocks", page.optimal_boundary)));
    facts.push((
        "protection information".to_owned(),
        match page.protection & 7 {
            0 => "off".to_owned(),
            kind => format!("type {kind}"),
        },
    ));
    facts.extend_from_slice(zones);
    if let Some(why) = refusal {
        facts.push(("not driven".to_owned(), why.to_owned()));
    }
    section(format!("namespace {nsid}"), facts)
}

fn smart_section(log: &SmartLog) -> Section {
    let wide = |[low, high]: [u64; 2]| (u128::from(high) << 64 | u128::from(low)).to_string();
    let temperature = log.temperature_celsius();
    section(
        "SMART / health log",
        vec![
            ("critical warning", format!("{:#04x}", log.critical_warning)),
            (
                "temperature",
                temperature.map_or_else(|| "not said".to_owned(), |c| format!("{c} C")),
            ),
            (
                "available spare, threshold",
                format!("{} %, {} %", log.available_spare_pct, log.spare_threshold_pct),
            ),
            ("life used", format!("{} %", log.used_pct)),
            (
                "data units read, written",
                format!(
                    "{}, {} (of 512,000 bytes)",
                    wide(log.data_units_read),
                    wide(log.data_units_written)
                ),
            ),
            ("host reads, writes", format!("{}, {}", wide(log.host_reads), wide(log.host_writes))),
            (
                "power cycles, hours",
                format!("{}, {}", wide(log.power_cycles), wide(log.power_on_hours)),
            ),
            ("unsafe shutdowns", wide(log.unsafe_shutdowns)),
            ("media errors", wide(log.media_errors)),
            ("error log entries", wide(log.error_log_entries)),
        ],
    )
}
