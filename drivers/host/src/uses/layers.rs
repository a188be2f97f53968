//! What is stacked on a block device: partitions, md, dm, bcache, loop devices, upon each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Use, UseKind, plain, unexamined};
use crate::Host;
use crate::drive::{Drive, devnode, partition_names};
use crate::kernel::DevId;
use crate::limits;
use crate::sysfs;

/// The devices of a drive from which the walk starts: each namespace's block device, and the
/// same namespace's on other controllers.
pub(super) fn bases(drive: &Drive) -> Vec<String> {
    let namespaces = drive.namespaces.iter();
    namespaces
        .flat_map(|namespace| namespace.block.iter().chain(&namespace.twins))
        .cloned()
        .collect()
}

/// A block device that lies over a file or a node named by its path.
pub(super) struct Backed {
    pub(super) name: String,
    pub(super) kind: UseKind,
    pub(super) path: PathBuf,
}

/// One block device that rests on a drive.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    /// Name below `/sys/class/block`.
    pub(super) name: String,
    /// Its node.
    pub(super) node: PathBuf,
    /// Its number.
    pub(super) dev: DevId,
    /// The drive's own namespace or partition that it rests on.
    pub(super) base: PathBuf,
    /// The whole disk, when this is a partition.
    parent: Option<String>,
}

impl Layer {
    /// Whether it is one of the drive's own: a namespace or a partition.
    pub(super) fn is_base(&self) -> bool {
        self.node == self.base
    }

    /// Whether it is a whole disk and no partition.
    pub(super) fn is_disk(&self) -> bool {
        self.parent.is_none()
    }

    /// Whether a use that was found is a reason for the kernel to refuse an exclusive claim on
    /// this device: one of it or of what rests on it, or of a partition of it.
    pub(super) fn explains(&self, found: &Use, layers: &[Layer]) -> bool {
        let on = found.on.as_ref().unwrap_or(&found.node);
        let is_partition = layers
            .iter()
            .any(|other| other.parent.as_ref() == Some(&self.name) && other.node == *on);
        found.kind != UseKind::Unexamined && (*on == self.node || is_partition)
    }
}

impl Host {
    /// Walks from the drive's own devices upwards. Each holder met on the way is a use.
    pub(super) fn layers(&self, bases: &[String], uses: &mut Vec<Use>) -> Vec<Layer> {
        let backed = self.backed();
        let mut seen = BTreeSet::new();
        let mut layers: Vec<Layer> = Vec::new();
        let mut waiting: Vec<(String, Option<PathBuf>, Option<String>)> =
            bases.iter().rev().map(|base| (base.clone(), None, None)).collect();
        while let Some((name, base, parent)) = waiting.pop() {
            let dir = self.block_dir(&name);
            let Some(dev) = sysfs::text(dir.join("dev")).and_then(|text| text.parse().ok()) else {
                continue; // It went away while this was walking.
            };
            if !seen.insert(name.clone()) {
                continue;
            }
            let node = devnode(&dir, &name);
            if layers.len() == limits::LAYERS_MAX {
                let what = format!("more than {} devices are stacked on it", limits::LAYERS_MAX);
                uses.push(unexamined(&node, &what));
                break;
            }
            let base = base.unwrap_or_else(|| node.clone());
            let layer = Layer { name, node, dev, base, parent };
            for partition in partition_names(&dir, &layer.name) {
                // A partition of the drive is a base itself; one of an md array is not.
                let base = (!layer.is_base()).then(|| layer.base.clone());
                waiting.push((partition, base, Some(layer.name.clone())));
            }
            for (holder, found) in self.holders_of(&layer, &dir, &backed) {
                uses.push(found);
                waiting.push((holder, Some(layer.base.clone()), None));
            }
            layers.push(layer);
        }
        layers
    }

    fn block_dir(&self, name: &str) -> PathBuf {
        self.path("/sys/class/block").join(name)
    }

    fn holders_of(&self, layer: &Layer, dir: &Path, backed: &[Backed]) -> Vec<(String, Use)> {
        let mut found = Vec::new();
        for holder in sysfs::names_or_none(dir.join("holders")) {
            let (kind, place) = self.describe_holder(&holder);
            found.push((holder, plain(kind, &layer.node, place).resting_on(layer)));
        }
        for backed in backed.iter().filter(|backed| self.leads_to(&backed.path, layer)) {
            let place = format!("/dev/{}", backed.name);
            let used = plain(backed.kind, &layer.node, place).resting_on(layer);
            found.push((backed.name.clone(), used));
        }
        found
    }

    /// The kind and the name of a holder: device-mapper says in its uuid's prefix who made it.
    fn describe_holder(&self, holder: &str) -> (UseKind, String) {
        let dir = self.block_dir(holder);
        let mapped = sysfs::value(dir.join("dm/name"));
        let uuid = sysfs::value(dir.join("dm/uuid")).unwrap_or_default();
        match mapped {
            Some(name) => {
                let kind = match uuid.split_once('-').map(|(prefix, _)| prefix) {
                    Some("LVM") => UseKind::Lvm,
                    Some("CRYPT") => UseKind::DmCrypt,
                    _ => UseKind::DeviceMapper,
                };
                (kind, format!("{name} (/dev/{holder})"))
            }
            None if dir.join("md").exists() => {
                let level = sysfs::value(dir.join("md/level"));
                let level = level.unwrap_or_else(|| "no level".to_owned());
                (UseKind::MdRaid, format!("/dev/{holder} ({level})"))
            }
            None if holder.starts_with("bcache") => (UseKind::Bcache, format!("/dev/{holder}")),
            None => (UseKind::Holder, format!("/dev/{holder}")),
        }
    }

    /// Loop devices in use, and compressed memory that writes to a disk what it cannot compress.
    pub(super) fn backed(&self) -> Vec<Backed> {
        let mut all = Vec::new();
        for name in sysfs::names_or_none(self.path("/sys/class/block")) {
            let (kind, file) = match name.as_str() {
                name if name.starts_with("loop") => (UseKind::Loop, "loop/backing_file"),
                name if name.starts_with("zram") => (UseKind::Holder, "backing_dev"),
                _ => continue,
            };
            let path = sysfs::value(self.block_dir(&name).join(file));
            if let Some(path) = path.filter(|path| path.starts_with('/')) {
                all.push(Backed { name, kind, path: path.into() });
            }
        }
        all
    }

    /// Whether a path that some other part of the system names is a node of a device.
    pub(super) fn leads_to(&self, path: &Path, layer: &Layer) -> bool {
        path == layer.node || self.block_number(path) == Some(layer.dev)
    }

    /// The number of the block device that a path below `/dev` leads to. Other paths are not
    /// followed: one on a dead network file system would block for ever.
    pub(super) fn block_number(&self, path: &Path) -> Option<DevId> {
        if !path.starts_with("/dev") {
            return None;
        }
        match self.kernel.node(&self.path(path)) {
            Ok(crate::Node::Block(dev)) => Some(dev),
            _ => None,
        }
    }

    /// Members of mounted Btrfs file systems, which their mount entries do not name: the kernel
    /// lists each member as a link (fs/btrfs/sysfs.c).
    pub(super) fn btrfs_of(&self, layers: &[Layer]) -> Vec<Use> {
        let class = self.path("/sys/fs/btrfs");
        let mut uses = Vec::new();
        for id in sysfs::names_or_none(&class) {
            let members = sysfs::names_or_none(class.join(&id).join("devices"));
            for layer in layers.iter().filter(|layer| members.contains(&layer.name)) {
                let label = sysfs::value(class.join(&id).join("label"));
                let place = label.map_or_else(|| id.clone(), |label| format!("{label:?} ({id})"));
                uses.push(plain(UseKind::Btrfs, &layer.node, place).resting_on(layer));
            }
        }
        uses
    }
}
