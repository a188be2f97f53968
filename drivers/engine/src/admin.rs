//! Admin commands through the kernel's own driver: `NVME_IOCTL_ADMIN_CMD` on a controller's node
//! (linux/nvme_ioctl.h). Reading only: Identify, Get Log Page, Get Features.

#![allow(unsafe_code)]

use crate::inspect::{FEATURES, Pages, Transitions};
use crate::{Condition, EngineError};
use nvpoll_spec::{
    Admin, ApstEntry, Cns, CommandSet, ControllerIdentity, ErrorLogEntry, FeatureId,
    IDENTIFY_BYTES, LogId, NSID_ALL, NamespaceIdentity, Status, SubmissionEntry, Version,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use zerocopy::{FromBytes, FromZeros};

/// `struct nvme_admin_cmd`.
#[repr(C)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xc048_4e41;
/// Bound on a command; the kernel aborts it then.
const TIMEOUT_MS: u32 = 10_000;
/// Namespaces that are read.
const NAMESPACES_MAX: usize = 64;

/// A controller's character node.
struct Node<'a> {
    path: &'a Path,
    file: File,
}

/// Reads all pages of the controller behind `path` (`/dev/nvme0`).
pub(crate) fn read(path: &Path) -> Result<Pages, EngineError> {
    let file = File::open(path).map_err(|error| {
        EngineError::Failed(format!("cannot open {}: {error}; run as root", path.display()))
    })?;
    let node = Node { path, file };
    let mut controller = nvpoll_spec::ControllerIdentity::new_zeroed();
    controller.clone_from(&node.page(&Admin::identify(Cns::CONTROLLER, 0))?);
    let list: [u32; IDENTIFY_BYTES / 4] = node.page(&Admin::identify(Cns::ACTIVE_NAMESPACES, 0))?;
    let mut namespaces = Vec::new();
    for nsid in list.into_iter().take_while(|&nsid| nsid != 0).take(NAMESPACES_MAX) {
        namespaces.push((nsid, Box::new(node.page(&Admin::identify(Cns::NAMESPACE, nsid))?)));
    }
    let zoned = namespaces.iter().filter(|(nsid, _)| node.is_zoned(&controller, *nsid));
    let zones = zoned.map(|(nsid, _)| {
        let value =
            "there are some; what they are is read by the userspace driver alone".to_owned();
        (*nsid, vec![("zones".to_owned(), value)])
    });
    let zones = zones.collect();
    let transitions = (controller.autonomous_power & 1 != 0).then(|| node.transitions());
    let kept = usize::from(controller.error_entries_z) + 1;
    let feature = |id: FeatureId| (id, node.send(&Admin::get_feature(id, 0), &mut []).ok());
    Ok(Pages {
        through: format!("the kernel's driver, {}", path.display()),
        registers: Vec::new(),
        controller: Box::new(controller),
        namespaces,
        smart: node
            .page(&Admin::get_log(LogId::SMART, NSID_ALL, 512))
            .map_err(|error: EngineError| error.to_string()),
        errors: node.errors(kept).map_err(|error| error.to_string()),
        firmware: node
            .page(&Admin::get_log(LogId::FIRMWARE, NSID_ALL, 512))
            .map_err(|error: EngineError| error.to_string()),
        transitions: transitions.map(|read| read.map_err(|error: EngineError| error.to_string())),
        features: FEATURES.into_iter().map(feature).collect(),
        zones,
        refusals: Vec::new(),
    })
}

/// `_IO('N', 0x40)`: the namespace that a node is of.
const NVME_IOCTL_ID: libc::c_ulong = 0x4e40;

/// The namespace identifier of an open namespace's node.
///
/// # Errors
/// The kernel's; `ENOTTY` when the node is another driver's.
pub(crate) fn namespace_of(file: &File) -> std::io::Result<u32> {
    // SAFETY: the request has no argument.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID as _) };
    u32::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

/// Identify Controller and Identify Namespace, through a node of the namespace or its controller.
///
/// # Errors
/// When the controller or the kernel refuses the commands.
pub(crate) fn identify_namespace(
    path: &Path,
    file: &File,
    nsid: u32,
) -> Result<(Box<ControllerIdentity>, Box<NamespaceIdentity>), EngineError> {
    let file = file.try_clone().map_err(|error| {
        EngineError::Failed(format!("{}: no descriptor: {error}", path.display()))
    })?;
    let node = Node { path, file };
    Ok((
        Box::new(node.page(&Admin::identify(Cns::CONTROLLER, 0))?),
        Box::new(node.page(&Admin::identify(Cns::NAMESPACE, nsid))?),
    ))
}

/// The state of the drive behind an open node of a namespace or its controller.
pub(crate) fn condition(path: &Path, file: &File, nsid: u32) -> Condition {
    let unread = |why: String| Condition { no_health: Some(why), ..Condition::default() };
    let file = match file.try_clone() {
        Ok(file) => file,
        Err(error) => return unread(format!("{}: no descriptor: {error}", path.display())),
    };
    let node = Node { path, file };
    let controller = match node.page::<ControllerIdentity>(&Admin::identify(Cns::CONTROLLER, 0)) {
        Ok(page) => page,
        Err(error) => return unread(error.to_string()),
    };
    let log = node.page(&Admin::get_log(LogId::SMART, NSID_ALL, 512));
    let log = log.map_err(|error: EngineError| error.to_string());
    let page = node.page::<NamespaceIdentity>(&Admin::identify(Cns::NAMESPACE, nsid)).ok();
    Condition::new(log, &controller, page.as_ref())
}

/// First version whose controllers all have a list of Namespace Identification Descriptors; a namespace with
/// zones came later.
const DESCRIPTORS_SINCE: Version = Version::new().with_major(1).with_minor(4);

/// Whether the namespace behind an open node of it or its controller has zones.
pub(crate) fn is_zoned(path: &Path, file: &File, id: &ControllerIdentity, nsid: u32) -> bool {
    file.try_clone().is_ok_and(|file| Node { path, file }.is_zoned(id, nsid))
}

impl Node<'_> {
    /// Whether a namespace has the Zoned Namespace Command Set.
    fn is_zoned(&self, controller: &ControllerIdentity, nsid: u32) -> bool {
        let list = || self.page::<[u8; IDENTIFY_BYTES]>(&Admin::identify(Cns::DESCRIPTORS, nsid));
        controller.version() >= DESCRIPTORS_SINCE
            && list().is_ok_and(|list| CommandSet::of_descriptors(&list) == Some(CommandSet::ZONED))
    }

    /// Sends a command that fills a page (or a log of its declared length) and reads it as `T`.
    fn page<T: FromBytes>(&self, entry: &SubmissionEntry) -> Result<T, EngineError> {
        let mut page = vec![0; size_of::<T>()];
        self.send(entry, &mut page)?;
        T::read_from_bytes(&page)
            .map_err(|_| EngineError::Failed("a page of another size than its type".to_owned()))
    }

    /// The newest of the `kept` entries of the error log, a page of it at most.
    fn errors(&self, kept: usize) -> Result<Vec<ErrorLogEntry>, EngineError> {
        let bytes = kept.min(IDENTIFY_BYTES / size_of::<ErrorLogEntry>()) * 64;
        let mut page = vec![0; bytes];
        self.send(&Admin::get_log(LogId::ERROR, NSID_ALL, bytes as u32), &mut page)?;
        let entries = page.chunks_exact(size_of::<ErrorLogEntry>());
        let entries = entries.filter_map(|bytes| ErrorLogEntry::read_from_bytes(bytes).ok());
        Ok(entries.filter(|entry| entry.count != 0).collect())
    }

    /// Autonomous Power State Transition: whether it is on, and its table of 32 entries.
    fn transitions(&self) -> Result<Transitions, EngineError> {
        let mut table = [0; 32 * size_of::<ApstEntry>()];
        let on = self.send(&Admin::get_feature(FeatureId::AUTONOMOUS_POWER, 0), &mut table)?;
        let words = table.as_chunks().0.iter();
        Ok((on & 1 != 0, words.map(|word| ApstEntry(u64::from_le_bytes(*word))).collect()))
    }

    /// Sends a command, its data going to `data`; returns the completion's dword 0.
    fn send(&self, entry: &SubmissionEntry, data: &mut [u8]) -> Result<u32, EngineError> {
        let mut command = AdminCommand {
            opcode: entry.opcode,
            flags: 0,
            reserved: 0,
            nsid: entry.nsid,
            cdw2: 0,
            cdw3: 0,
            metadata: 0,
            address: if data.is_empty() { 0 } else { data.as_mut_ptr().addr() as u64 },
            metadata_bytes: 0,
            data_bytes: data.len() as u32,
            cdw10_to_15: [
                entry.cdw10,
                entry.cdw11,
                entry.cdw12,
                entry.cdw13,
                entry.cdw14,
                entry.cdw15,
            ],
            timeout_ms: TIMEOUT_MS,
            result: 0,
        };
        // SAFETY: the structure is the request's own and lives on this stack; the kernel writes at
        // most `data_bytes` to `address`, which is `data`, borrowed mutably until it returns.
        let result = unsafe {
            libc::ioctl(self.file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD as _, &raw mut command)
        };
        match result {
            0 => Ok(command.result),
            status if status > 0 => Err(EngineError::Failed(format!(
                "{}: the controller answered {}",
                self.path.display(),
                Status(status as u16)
            ))),
            _ => Err(EngineError::Failed(format!(
                "{}: {}",
                self.path.display(),
                std::io::Error::last_os_error()
            ))),
        }
    }
}
