//! What a target's name means, and what an engine opens for it.

use super::system::{self, Host};
use crate::failure::Failure;
#[cfg(target_os = "linux")]
use crate::report::PcieLink;
use crate::report::{Drive as ReportDrive, DriveKind};
use nvpoll_engine::{EngineKind, SoftOptions, Target};
#[cfg(target_os = "linux")]
use nvpoll_host::Drive;
use std::path::PathBuf;

/// A target that the user named, resolved.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As it was typed.
    pub name: String,
    /// What it is.
    pub what: What,
    /// What the system says of the disk below it.
    pub below: Below,
}

/// What a system says of the disk below a target, where that is no [`What::Drive`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Model.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// An NVMe drive.
    pub is_nvme: bool,
    /// Which of a system's several stacks drives it: `native`, `non-native`. `None` where it has one,
    /// or does not say.
    pub stack: Option<&'static str>,
}

/// What a target is.
#[derive(Clone, Debug)]
pub enum What {
    /// A soft drive, started for each measurement.
    Soft(SoftOptions),
    /// Nothing.
    Null,
    /// An NVMe drive, whichever driver has it, and one of its namespaces.
    #[cfg(target_os = "linux")]
    Drive {
        /// The drive.
        drive: Box<Drive>,
        /// The namespace that is meant.
        nsid: u32,
    },
    /// Another block device.
    Block {
        /// Its node.
        node: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// Its logical block.
        lba_bytes: u32,
    },
    /// A regular file.
    File {
        /// Its path.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// Made by this process, and to be removed by it.
        is_scratch: bool,
    },
}

/// Holes of a file up to which they are not spoken of: file systems round and compress.
const HOLES_PCT_MIN: u64 = 1;

/// Part of a file for which nothing is allocated, in whole percent; `None` where the system does not say.
#[cfg(unix)]
fn holes_pct(path: &std::path::Path, size_bytes: u64) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // In units of 512 bytes, whatever the file system's block (stat(2)).
    let allocated = std::fs::metadata(path).ok()?.blocks().saturating_mul(512);
    let holes = u128::from(size_bytes.saturating_sub(allocated));
    u64::try_from(holes.checked_mul(100)?.checked_div(size_bytes.into())?).ok()
}

#[cfg(not(unix))]
fn holes_pct(_: &std::path::Path, _: u64) -> Option<u64> {
    None
}

impl Subject {
    /// What `name` means here.
    ///
    /// # Errors
    /// One line that says what the name leads to and what to type instead.
    pub fn resolve(host: &Host, name: &str) -> Result<Self, Failure> {
        match without_device(name)? {
            Some(what) => Ok(Self::new(name, what)),
            None => system::resolve(host, name),
        }
    }

    /// A subject of which nothing more is known.
    pub fn new(name: impl Into<String>, what: What) -> Self {
        Self { name: name.into(), what, below: Below::default() }
    }

    /// What two names of the same target have in common; `None` where each is another one.
    pub fn identity(&self) -> Option<String> {
        match &self.what {
            #[cfg(target_os = "linux")]
            What::Drive { drive, nsid } => Some(format!("{} namespace {nsid}", drive.address)),
            What::Block { node: path, .. } | What::File { path, .. } => {
                Some(path.display().to_string())
            }
            What::Soft(_) | What::Null => None,
        }
    }

    /// Whether the drive is bound to a driver for userspace.
    #[cfg(target_os = "linux")]
    pub fn is_bound(&self) -> bool {
        self.user_driver().is_some()
    }

    /// The driver for userspace that the drive is bound to.
    #[cfg(target_os = "linux")]
    pub fn user_driver(&self) -> Option<nvpoll_host::UserDriver> {
        let What::Drive { drive, .. } = &self.what else { return None };
        drive.driver.as_deref().and_then(nvpoll_host::UserDriver::from_name)
    }

    /// What engine `kind` opens, and the namespace. Asked anew each time: a drive that went to a
    /// userspace driver and came back may have another name then.
    ///
    /// # Errors
    /// When the engine cannot drive what this is, with those that can.
    #[cfg_attr(windows, expect(unused_variables, reason = "Windows gives no drive another name"))]
    pub fn engine_target(&self, host: &Host, kind: EngineKind) -> Result<(Target, u32), Failure> {
        let wrong = |takes: &str| {
            let name = &self.name;
            Err(Failure::usage(format!(
                "engine {kind} cannot drive {name}, {}; it takes {takes}",
                self.describe()
            )))
        };
        match (kind.info().name, &self.what) {
            ("null", _) => Ok((Target::Null, 1)),
            ("soft", What::Soft(options)) => Ok((Target::Soft(options.clone()), 1)),
            ("soft", _) => wrong("a soft drive (soft[:options])"),
            #[cfg(target_os = "linux")]
            (_, What::Drive { drive, nsid }) if kind.info().takes_drive() => {
                Ok((Target::Pci(drive.address), *nsid))
            }
            _ if kind.info().takes_drive() => wrong("an NVMe drive (`nvpoll list` shows them)"),
            #[cfg(target_os = "linux")]
            ("io_uring_cmd", What::Drive { drive, nsid }) => {
                Ok((Target::Path(host.generic_node(drive.address, *nsid)?), *nsid))
            }
            ("io_uring_cmd", _) => wrong("an NVMe drive (`nvpoll list` shows them)"),
            #[cfg(target_os = "linux")]
            (_, What::Drive { drive, nsid }) => {
                Ok((Target::Path(host.kernel_node(drive.address, *nsid)?), *nsid))
            }
            (_, What::Block { node, .. }) => Ok((Target::Path(node.clone()), 1)),
            (_, What::File { path, .. }) => Ok((Target::Path(path.clone()), 1)),
            (_, What::Soft(_) | What::Null) => {
                wrong("a drive, a block device or a file; the kernel does not see a soft drive")
            }
        }
    }

    /// In a word or two, for messages.
    pub fn describe(&self) -> &'static str {
        match &self.what {
            What::Soft(_) => "a soft drive",
            What::Null => "nothing",
            #[cfg(target_os = "linux")]
            What::Drive { .. } => "an NVMe drive",
            What::Block { .. } => "a block device",
            What::File { .. } => "a file",
        }
    }

    /// Size and logical block, where they are known without opening it.
    pub fn known_geometry(&self) -> Option<(u64, u32)> {
        match &self.what {
            What::Soft(options) => Some((options.size_bytes, options.lba_bytes)),
            #[cfg(target_os = "linux")]
            What::Drive { drive, nsid } => {
                let namespace = drive.namespaces.iter().find(|other| other.nsid == *nsid)?;
                Some((namespace.size_bytes, namespace.lba_bytes))
            }
            What::Block { size_bytes, lba_bytes, .. } => Some((*size_bytes, *lba_bytes)),
            What::File { size_bytes, .. } => Some((*size_bytes, 1)),
            What::Null => None,
        }
    }

    /// What is known of blocks that nobody ever wrote, a sentence: a read of them costs less than one of
    /// data, because nothing lies there.
    pub fn never_written(&self) -> Option<String> {
        let name = &self.name;
        match &self.what {
            // In memory, as by default.
            What::Soft(options) if options.backing == SoftOptions::default().backing => {
                Some(format!(
                    "{name} is new for each measurement, and reads find blocks that were never written: no memory is touched for them"
                ))
            }
            What::File { path, size_bytes, .. } => {
                let holes_pct = holes_pct(path, *size_bytes).filter(|pct| *pct >= HOLES_PCT_MIN)?;
                Some(format!(
                    "{holes_pct} % of {name} was never written: reads of that find holes, which the file system answers without the disk; write the file once"
                ))
            }
            _ => None,
        }
    }

    /// As the report names it.
    pub fn report_drive(&self) -> ReportDrive {
        let kind = match &self.what {
            What::Soft(_) => DriveKind::Soft,
            What::Null => DriveKind::Null,
            #[cfg(target_os = "linux")]
            What::Drive { .. } => DriveKind::Nvme,
            What::Block { .. } if self.below.is_nvme => DriveKind::Nvme,
            What::Block { .. } => DriveKind::Block,
            What::File { .. } => DriveKind::File,
        };
        let mut report = ReportDrive::new(&self.name, kind);
        if let Some((size_bytes, block_bytes)) = self.known_geometry() {
            report.size_bytes = Some(size_bytes);
            report.block_bytes = (kind != DriveKind::File).then_some(block_bytes);
        }
        if matches!(self.what, What::Block { .. }) {
            let Below { model, serial, firmware, .. } = self.below.clone();
            (report.model, report.serial, report.firmware) = (model, serial, firmware);
        }
        #[cfg(target_os = "linux")]
        if let What::Drive { drive, .. } = &self.what {
            let record = drive.record.as_ref();
            let recorded = |now: &Option<String>, then: Option<&Option<String>>| {
                now.clone().or_else(|| then.cloned().flatten())
            };
            report.address = Some(drive.address.to_string());
            report.model = recorded(&drive.model, record.map(|record| &record.model));
            report.serial = recorded(&drive.serial, record.map(|record| &record.serial));
            report.firmware = recorded(&drive.firmware, record.map(|record| &record.firmware));
            report.numa_node = drive.numa_node;
            report.link = link(drive);
        }
        report
    }
}

/// The link of a drive, where the system says how it is and how it could be.
#[cfg(target_os = "linux")]
fn link(drive: &Drive) -> Option<PcieLink> {
    let (now, most) = (drive.link_now?, drive.link_max?);
    // Rates are a few GT/s: no rounding, and nothing is cut off.
    let mt_s = |gts: f64| (gts * 1000.0) as u32;
    Some(PcieLink {
        mt_s: mt_s(now.speed_gts),
        lanes: now.width,
        mt_s_max: mt_s(most.speed_gts),
        lanes_max: most.width,
    })
}

/// Targets that are no device of this machine.
fn without_device(name: &str) -> Result<Option<What>, Failure> {
    if name == "null" {
        return Ok(Some(What::Null));
    }
    if name == "soft" || name.starts_with("soft:") {
        let options = name.parse::<SoftOptions>();
        let options = options.map_err(|error| Failure::usage(format!("{name}: {error}")))?;
        return Ok(Some(What::Soft(options)));
    }
    if name.starts_with("vfio-user:") {
        return Err(Failure::usage(format!(
            "{name}: this version has no vfio-user transport; use soft[:options] or a drive"
        )));
    }
    Ok(None)
}
