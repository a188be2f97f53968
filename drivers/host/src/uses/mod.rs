//! What uses a drive: everything that would lose data, or its footing, if the drive went away.

mod exports;
mod handles;
mod layers;
mod mounts;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::handles::Handles;
use self::layers::Layer;
use self::mounts::{Mount, Swap};
use crate::Host;
use crate::bind::UserDriver;
use crate::drive::{Drive, sectors_bytes};
use crate::error::{HostError, printable};
use crate::kernel::Claim;
use crate::limits;
use crate::signature::{self, Signature};
use crate::sysfs;
use crate::target::Target;

/// The kind of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UseKind {
    /// The root file system lies on it.
    Root,
    /// A mounted file system.
    Mount,
    /// Swap space.
    Swap,
    /// An LVM logical volume.
    Lvm,
    /// A dm-crypt mapping.
    DmCrypt,
    /// Another device-mapper mapping.
    DeviceMapper,
    /// An md RAID array.
    MdRaid,
    /// A bcache device.
    Bcache,
    /// A device of the kernel that is none of the above.
    Holder,
    /// A loop device over it.
    Loop,
    /// A member of a mounted Btrfs file system.
    Btrfs,
    /// A member of an imported ZFS pool.
    Zfs,
    /// A process has a node of it open.
    OpenHandle,
    /// A process drives it from userspace.
    UserspaceDriver,
    /// It is exported to other machines.
    Exported,
    /// The kernel has an exclusive claim on it whose owner was not found.
    Claimed,
    /// Another controller of this machine leads to the same namespace.
    SharedNamespace,
    /// Virtual functions are enabled on it.
    VirtualFunctions,
    /// Something could not be examined, so it counts as in use.
    Unexamined,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Who {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.comm, self.pid)
    }
}

/// One use of a drive: the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Use {
    /// What kind.
    pub kind: UseKind,
    /// The node that is used: a namespace, a partition, or what is stacked on them.
    pub node: PathBuf,
    /// The drive's own namespace or partition that `node` rests on, when it is another.
    pub on: Option<PathBuf>,
    /// Where it is used: a mount point, a holder's name. Empty where the kind says it all.
    pub place: String,
    /// The process, where one is known.
    pub who: Option<Who>,
    /// What else helps to find it.
    pub detail: Option<String>,
}

impl fmt::Display for Use {
    /// One line, whatever others called their processes and folders.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&Evidence(self).to_string()))
    }
}

struct Evidence<'a>(&'a Use);

impl fmt::Display for Evidence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(found) = self;
        found.write(f)
    }
}

impl Use {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node.display())?;
        if let Some(on) = &self.on {
            write!(f, " (on {})", on.display())?;
        }
        let Self { place, .. } = self;
        match self.kind {
            UseKind::Root => write!(f, " holds the root file system"),
            UseKind::Mount => write!(f, " is mounted on {place}"),
            UseKind::Swap => write!(f, " is swap space in use"),
            UseKind::Lvm => write!(f, " is under LVM volume {place}"),
            UseKind::DmCrypt => write!(f, " is under dm-crypt mapping {place}"),
            UseKind::DeviceMapper => write!(f, " is under device-mapper mapping {place}"),
            UseKind::MdRaid => write!(f, " is a member of md array {place}"),
            UseKind::Bcache => write!(f, " is under bcache device {place}"),
            UseKind::Holder => write!(f, " is held by {place}"),
            UseKind::Loop => write!(f, " is under loop device {place}"),
            UseKind::Btrfs => write!(f, " is a member of mounted Btrfs {place}"),
            UseKind::Zfs => write!(f, " is a member of an imported ZFS pool"),
            UseKind::OpenHandle => write!(f, " is open"),
            UseKind::UserspaceDriver => write!(f, " is driven from userspace through {place}"),
            UseKind::Exported => write!(f, " is exported by {place}"),
            UseKind::Claimed => write!(f, " is claimed exclusively by an unknown user"),
            UseKind::SharedNamespace => write!(f, " is reached through {place} as well"),
            UseKind::VirtualFunctions => write!(f, " has {place} virtual functions enabled"),
            UseKind::Unexamined => write!(f, " could not be examined: {place}"),
        }?;
        match (&self.who, self.kind) {
            (Some(who), UseKind::Root | UseKind::Mount) => {
                write!(f, " in the mount namespace of {who}")
            }
            (Some(who), _) => write!(f, " by {who}"),
            (None, _) => Ok(()),
        }?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ", {detail}"))
    }
}

/// Drivers whose users this crate finds: the kernel's own, those for userspace, and the one that
/// only keeps others away. Any other may have given the drive to a virtual machine.
const KNOWN_DRIVERS: [&str; 5] = ["nvme", "vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub"];

/// What was found on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeSignatures {
    /// The namespace's or partition's node.
    pub node: PathBuf,
    /// What lies on it, by offset from the node's own start.
    pub found: Vec<Signature>,
}

/// What the whole machine uses at one moment: gathered once, asked for each drive.
#[derive(Debug)]
pub struct Survey {
    host: Host,
    mounts: Vec<Mount>,
    swaps: Vec<Swap>,
    handles: Handles,
    /// What hides uses of any drive.
    unexamined: Vec<String>,
}

impl Host {
    /// Looks at every mount table, swap space and open file of the machine.
    ///
    /// # Errors
    /// When `/proc` cannot be listed at all. What is refused in part is in the answers.
    pub fn survey(&self) -> Result<Survey, HostError> {
        let mut unexamined = Vec::new();
        let processes = self.processes()?;
        self.check_pid_namespace(&processes, &mut unexamined);
        Ok(Survey {
            mounts: self.mounts(&processes, &mut unexamined),
            swaps: self.swaps(&mut unexamined),
            handles: self.handles(&processes, std::process::id(), &mut unexamined),
            unexamined,
            host: self.clone(),
        })
    }

    /// Everything that uses a namespace, a partition or a node of a drive; empty when nothing
    /// does. What could not be examined is a use.
    ///
    /// # Errors
    /// Those of [`Host::survey`].
    pub fn uses(&self, drive: &Drive) -> Result<Vec<Use>, HostError> {
        Ok(self.survey()?.uses(drive))
    }

    /// Whether nothing uses what is to be written: a drive with all that is on it, another block
    /// device, or a file. `name` is what the user typed.
    ///
    /// # Errors
    /// [`HostError::InUse`] with the evidence; visitors that leave within
    /// [`limits::VISITORS_MAX`] do not count.
    pub fn may_write(&self, name: &str, target: &Target) -> Result<(), HostError> {
        let found = self.without_visitors(|survey| {
            let (mut uses, claims) = survey.uses_and_claims_of(target);
            if self.opens_for_one(target) {
                uses.retain(|found| !found.is_of_processes());
            }
            (uses, claims)
        })?;
        found.map(drop).map_err(|uses| HostError::InUse { name: name.to_owned(), uses })
    }

    /// Whether whoever opens this drive knows that nobody else has it, without a look at other
    /// processes: the kernel has no node for it, and opens a VFIO group for one process at a time
    /// (`vfio_group_fops_open`). That is no leave to take it from whoever has it.
    fn opens_for_one(&self, target: &Target) -> bool {
        let Target::Drive { drive, .. } = target else { return false };
        layers::bases(drive).is_empty()
            && drive.driver.as_deref() == Some(UserDriver::VfioPci.name())
            && self.has_iommu(drive)
    }

    /// Looks until nothing is found, or nothing that may pass: udev and blkid open a node after
    /// each change. The claims, or the uses.
    pub(crate) fn without_visitors(
        &self,
        look: impl Fn(&Survey) -> (Vec<Use>, Vec<Claim>),
    ) -> Result<Result<Vec<Claim>, Vec<Use>>, HostError> {
        let passing = |found: &Use| matches!(found.kind, UseKind::OpenHandle | UseKind::Claimed);
        let deadline = self.kernel.elapsed() + limits::VISITORS_MAX;
        loop {
            let (uses, claims) = look(&self.survey()?);
            if uses.is_empty() {
                return Ok(Ok(claims));
            }
            drop(claims);
            if self.kernel.elapsed() >= deadline || !uses.iter().all(passing) {
                return Ok(Err(uses));
            }
            self.kernel.pause(limits::VISITORS_INTERVAL);
        }
    }

    /// What lies on the drive's namespaces and partitions, as the kernel shows them. A drive
    /// without block nodes has no answer here: scan it through its own driver.
    ///
    /// # Errors
    /// When a node cannot be opened or read: what it holds counts as in use then.
    pub fn signatures(&self, drive: &Drive) -> Result<Vec<NodeSignatures>, HostError> {
        let mut all = Vec::new();
        for namespace in &drive.namespaces {
            let partitions = namespace.partitions.iter().map(|partition| &partition.node);
            for node in namespace.node.iter().chain(partitions) {
                all.push(NodeSignatures { node: node.clone(), found: self.node_signatures(node)? });
            }
        }
        Ok(all)
    }

    /// What lies on one block node or file.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn node_signatures(&self, node: &Path) -> Result<Vec<Signature>, HostError> {
        let failed = |error| HostError::io("read", node, error);
        let path = if node.starts_with("/dev") { self.path(node) } else { node.to_owned() };
        let file = File::open(&path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let size = match self.kernel.node(&path).map_err(failed)? {
            crate::Node::Block(dev) => {
                sectors_bytes(&self.path(format!("/sys/dev/block/{dev}/size")))
            }
            _ => meta.len(),
        };
        let read_at = |offset, bytes: &mut [u8]| file.read_exact_at(bytes, offset);
        signature::scan(read_at, size).map_err(failed)
    }
}

impl Survey {
    /// Everything that uses a drive; see [`Host::uses`].
    pub fn uses(&self, drive: &Drive) -> Vec<Use> {
        self.uses_and_claims(drive).0
    }

    /// Everything that uses what a name led to.
    pub fn uses_of(&self, target: &Target) -> Vec<Use> {
        self.uses_and_claims_of(target).0
    }

    fn uses_and_claims_of(&self, target: &Target) -> (Vec<Use>, Vec<Claim>) {
        match target {
            Target::Drive { drive, .. } => self.uses_and_claims(drive),
            Target::Block { name, .. } => self.uses_of_blocks(std::slice::from_ref(name)),
            Target::File { path, .. } => (self.uses_of_file(path), Vec::new()),
        }
    }

    /// The uses, and exclusive claims on every node that had none: while they are held, nobody
    /// can mount it or build on it.
    pub(crate) fn uses_and_claims(&self, drive: &Drive) -> (Vec<Use>, Vec<Claim>) {
        let (mut uses, claims) = self.uses_of_blocks(&layers::bases(drive));
        uses.extend(self.uses_of_function(drive));
        uses.sort_by(|a, b| (a.kind, &a.node, &a.place).cmp(&(b.kind, &b.node, &b.place)));
        uses.dedup();
        (uses, claims)
    }

    fn uses_of_blocks(&self, bases: &[String]) -> (Vec<Use>, Vec<Claim>) {
        let mut uses = Vec::new();
        let layers = self.host.layers(bases, &mut uses);
        for layer in &layers {
            uses.extend(self.mounts_of(layer));
            uses.extend(self.swaps_of(layer));
            uses.extend(self.handles.of_block(layer));
        }
        uses.extend(self.host.exports_of(&layers));
        uses.extend(self.host.btrfs_of(&layers));
        let claims = self.claims_of(&layers, &mut uses);
        uses.extend(self.unexamined.iter().map(|what| unexamined(Path::new(PROCESSES), what)));
        (uses, claims)
    }

    /// Uses of the function itself: its character nodes, the userspace driver's nodes, its
    /// virtual functions, and other ways to its namespaces.
    fn uses_of_function(&self, drive: &Drive) -> Vec<Use> {
        let mut uses = Vec::new();
        let folder = self.host.device_dir(&drive.address);
        let node = PathBuf::from(drive.address.to_string());
        uses.extend(self.handles.of_controller(&self.host, drive));
        uses.extend(self.handles.of_userspace(&self.host, drive, &sysfs::canonical(&folder)));
        if let Some(driver) = drive.driver.as_deref().filter(|name| !KNOWN_DRIVERS.contains(name)) {
            let what = format!("it is on {driver}, whose users are not known");
            uses.push(unexamined(&node, &what));
        }
        if drive.virtual_functions > 0 {
            let count = drive.virtual_functions.to_string();
            uses.push(plain(UseKind::VirtualFunctions, &node, count));
        }
        for namespace in &drive.namespaces {
            for other in &namespace.other_paths {
                let node = namespace.node.as_ref().unwrap_or(&node);
                uses.push(plain(UseKind::SharedNamespace, node, other.clone()));
            }
        }
        uses
    }

    fn uses_of_file(&self, path: &Path) -> Vec<Use> {
        let mut uses = Vec::new();
        for swap in self.swaps.iter().filter(|swap| swap.path == path) {
            uses.push(plain(UseKind::Swap, path, String::new()).with_detail(&swap.kind));
        }
        for backed in self.host.backed().into_iter().filter(|backed| backed.path == path) {
            uses.push(plain(backed.kind, path, format!("/dev/{}", backed.name)));
        }
        uses
    }

    /// Tries to claim each of the drive's own nodes, and keeps the claims on whole disks: they
    /// bar their partitions as well. A claim that the kernel refuses, and that nothing found so
    /// far explains, is a use of its own: ZFS, a mount namespace that no process is in any more,
    /// a driver that keeps no holder link.
    fn claims_of(&self, layers: &[Layer], uses: &mut Vec<Use>) -> Vec<Claim> {
        let mut claims = Vec::new();
        let (disks, partitions): (Vec<_>, Vec<_>) =
            layers.iter().filter(|layer| layer.is_base()).partition(|layer| layer.is_disk());
        // A claim on the disk would make those on its partitions fail, so they come first.
        for layer in partitions.into_iter().chain(disks) {
            match self.host.claim(&layer.node) {
                Ok(claim) if layer.is_disk() => claims.extend(claim),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let explained = |found: &Use| layer.explains(found, layers);
                    if !uses.iter().any(explained) {
                        uses.push(self.unknown_claim(layer));
                    }
                }
                Err(error) => uses.push(unexamined(&layer.node, &error.to_string())),
            }
        }
        claims
    }

    fn unknown_claim(&self, layer: &Layer) -> Use {
        let found = self.host.node_signatures(&layer.node).unwrap_or_default();
        let kind = match found.iter().any(|signature| signature.name == "ZFS member") {
            true => UseKind::Zfs,
            false => UseKind::Claimed,
        };
        let claimed = plain(kind, &layer.node, String::new());
        match found.first() {
            Some(signature) => claimed.with_detail(&format!("{signature} lies on it")),
            None => claimed,
        }
    }
}

impl Host {
    /// An exclusive claim; `None` for a node without a medium.
    fn claim(&self, node: &Path) -> io::Result<Option<Claim>> {
        let path = self.path(node);
        let mut tries = 1;
        loop {
            match self.kernel.claim(&path) {
                Ok(claim) => return Ok(Some(claim)),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    if tries == limits::CLAIM_TRIES {
                        return Err(error);
                    }
                }
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOMEDIUM) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            tries += 1;
            self.kernel.pause(limits::CLAIM_INTERVAL);
        }
    }
}

fn plain(kind: UseKind, node: &Path, place: String) -> Use {
    Use { kind, node: node.to_owned(), on: None, place, who: None, detail: None }
}

fn unexamined(node: &Path, what: &str) -> Use {
    plain(UseKind::Unexamined, node, what.to_owned())
}

/// The node of what could not be seen of other processes.
const PROCESSES: &str = "/proc";

impl Use {
    /// Whether it says that something of other processes could not be seen.
    fn is_of_processes(&self) -> bool {
        self.kind == UseKind::Unexamined && self.node == Path::new(PROCESSES)
    }

    fn with_detail(mut self, detail: &str) -> Self {
        self.detail = Some(detail.to_owned());
        self
    }

    fn by(mut self, who: Option<Who>) -> Self {
        self.who = who;
        self
    }

    fn resting_on(mut self, layer: &Layer) -> Self {
        self.on = (layer.node != layer.base).then(|| layer.base.clone());
        self
    }
}
