//! What a name that a user typed leads to.

use std::path::{Component, Path, PathBuf};

use nvpoll_spec::PciAddress;
use serde::Serialize;

use crate::Host;
use crate::drive::{Drive, devnode, sectors_bytes};
use crate::error::HostError;
use crate::kernel::{DevId, Node};
use crate::sysfs;

/// Something that can be measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Target {
    /// An NVMe drive on PCI, whole, whichever driver has it.
    Drive {
        /// The drive.
        drive: Box<Drive>,
        /// The namespace, when the name led to one.
        namespace: Option<u32>,
    },
    /// Another block device: for the kernel's engines only.
    Block {
        /// Its node, links followed.
        node: PathBuf,
        /// Its name below `/sys/class/block`.
        name: String,
        /// Size in bytes.
        size_bytes: u64,
        /// Logical block in bytes.
        lba_bytes: u32,
        /// Whether the kernel lets nobody write it.
        read_only: bool,
    },
    /// A regular file: for the kernel's engines only.
    File {
        /// Its path, links followed.
        path: PathBuf,
        /// Size in bytes.
        size_bytes: u64,
    },
}

impl Host {
    /// What a name leads to: a PCI address (`0000:01:00.0`, `01:00.0`), a device node or any link
    /// to one, or a file. Device nodes are known by their numbers, so a copy under another name
    /// leads to the same drive. A name that a taken drive had before is found in its record; one
    /// that another drive has got since is refused.
    ///
    /// # Errors
    /// [`HostError::Target`] for what cannot be measured, [`HostError::Partition`] for a
    /// partition; both say what to name instead.
    pub fn resolve(&self, name: &str) -> Result<Target, HostError> {
        if let Ok(address) = name.parse::<PciAddress>() {
            return Ok(whole(self.drive(address)?, None));
        }
        let path = self.target_path(name);
        match self.kernel.node(&path) {
            Ok(Node::Block(dev)) => self.not_renamed(name, &path, self.resolve_block(name, dev)?),
            Ok(Node::Char(dev)) => self.not_renamed(name, &path, self.resolve_char(name, dev)?),
            Ok(Node::File(size_bytes)) => {
                let path = self.outside(&sysfs::canonical(&path));
                Ok(Target::File { path, size_bytes })
            }
            Ok(Node::Directory) => Err(wrong(
                name,
                "this is a directory",
                "name a drive (`nvpoll list` shows them), a block device or a regular file in it",
            )),
            Ok(Node::Other) => Err(wrong(
                name,
                "this is neither a device nor a regular file",
                "name a drive (`nvpoll list` shows them), a block device or a regular file",
            )),
            Err(error) => self.resolve_missing(name, &error),
        }
    }

    /// `/sys`, `/proc`, `/dev` and `/run` lie below the root; other files are where they are.
    pub(crate) fn target_path(&self, name: &str) -> PathBuf {
        let path = Path::new(name);
        let mut parts = path.components();
        let below = match (parts.next(), parts.next()) {
            (Some(Component::RootDir), Some(Component::Normal(top))) => {
                ["sys", "proc", "dev", "run"].iter().any(|&name| top == name)
            }
            _ => false,
        };
        if below { self.path(path) } else { path.to_owned() }
    }

    /// Refuses a name that was another drive's when that was taken: the kernel gives the lowest
    /// free number to the next controller that comes, and the user may mean either.
    fn not_renamed(&self, name: &str, path: &Path, target: Target) -> Result<Target, HostError> {
        let real = self.outside(&sysfs::canonical(path));
        let now = match &target {
            Target::Drive { drive, .. } => Some(drive.address),
            _ => None,
        };
        let was = self.records()?.into_iter().find(|record| {
            let named = record.names(Path::new(name)).or_else(|| record.names(&real)).is_some();
            named && Some(record.address) != now && record.is_about(self)
        });
        match was {
            None => Ok(target),
            Some(record) => Err(wrong(
                name,
                &format!(
                    "this name was {}'s ({}) before nvpoll took that drive, and the kernel has \
                     given it to another since",
                    record.address,
                    record.label()
                ),
                "name the drive that you mean by its address",
            )),
        }
    }

    fn resolve_block(&self, name: &str, dev: DevId) -> Result<Target, HostError> {
        let dir = sysfs::canonical(&self.path(format!("/sys/dev/block/{dev}")));
        let Some(block) = file_name(&dir).filter(|_| dir.join("dev").exists()) else {
            return Err(wrong(
                name,
                &format!("no block device has the number {dev} of this node"),
                &self.choices(),
            ));
        };
        if let Some(number) = sysfs::number(dir.join("partition")) {
            let parent = dir.parent().unwrap_or(&dir);
            let whole = devnode(parent, &file_name(parent).unwrap_or_default());
            return Err(HostError::Partition { name: name.to_owned(), number, whole });
        }
        let is_it = |drive: &Drive| {
            drive.namespaces.iter().find(|ns| ns.block.as_ref() == Some(&block)).map(|ns| ns.nsid)
        };
        match self.drive_that(name, is_it)? {
            Some(target) => Ok(target),
            None => Ok(Target::Block {
                node: devnode(&dir, &block),
                size_bytes: sectors_bytes(&dir.join("size")),
                lba_bytes: sysfs::number(dir.join("queue/logical_block_size")).unwrap_or(512),
                read_only: sysfs::number(dir.join("ro")) == Some(1u8),
                name: block,
            }),
        }
    }

    fn resolve_char(&self, name: &str, dev: DevId) -> Result<Target, HostError> {
        let dir = sysfs::canonical(&self.path(format!("/sys/dev/char/{dev}")));
        let node = file_name(&dir).map(|last| devnode(&dir, &last));
        let last = file_name(&dir);
        let of_controller = |drive: &Drive| (drive.controller == last).then_some(());
        let of_namespace =
            |drive: &Drive| drive.namespaces.iter().find(|ns| ns.generic == node).map(|ns| ns.nsid);
        if let Some(target) = self.drive_that(name, of_namespace)? {
            return Ok(target);
        }
        for drive in self.drives()? {
            if of_controller(&drive).is_some() || self.vfio_nodes(&drive).contains(&dev) {
                return Ok(whole(drive, None));
            }
        }
        Err(wrong(name, "this character device is no NVMe drive on PCI", &self.choices()))
    }

    /// The drive that has the namespace asked for. One that is reached through two drives is
    /// not decided here.
    fn drive_that(
        &self,
        name: &str,
        is_it: impl Fn(&Drive) -> Option<u32>,
    ) -> Result<Option<Target>, HostError> {
        let mut found: Vec<(Drive, u32)> = self
            .drives()?
            .into_iter()
            .filter_map(|drive| is_it(&drive).map(|nsid| (drive, nsid)))
            .collect();
        if found.len() > 1 {
            let paths: Vec<String> = found.iter().map(|(drive, _)| drive.summary()).collect();
            return Err(wrong(
                name,
                &format!("{} drives lead to this namespace: {}", paths.len(), paths.join(", ")),
                "name one of them by its address",
            ));
        }
        Ok(found.pop().map(|(drive, nsid)| whole(drive, Some(nsid))))
    }

    /// A name without a file: perhaps the node of a drive that is taken.
    fn resolve_missing(&self, name: &str, error: &std::io::Error) -> Result<Target, HostError> {
        let path = Path::new(name);
        for record in self.records()? {
            if let (Some(nsid), true) = (record.names(path), record.is_about(self)) {
                return Ok(whole(self.drive(record.address)?, nsid));
            }
        }
        let node = Path::new("/dev").join(name);
        let seen = match error.kind() {
            std::io::ErrorKind::NotFound if !name.is_empty() && self.path(&node).exists() => {
                format!("there is no such file (is {} meant?)", node.display())
            }
            std::io::ErrorKind::NotFound => "there is no such device or file".to_owned(),
            _ => format!("this cannot be looked at: {error}"),
        };
        Err(wrong(name, &seen, &self.choices()))
    }

    /// Numbers of the nodes through which a userspace driver reaches a drive: its VFIO group,
    /// its VFIO device, its UIO device.
    pub(crate) fn vfio_nodes(&self, drive: &Drive) -> Vec<DevId> {
        let dir = self.device_dir(&drive.address);
        let dev = |path: PathBuf| sysfs::text(path.join("dev"))?.parse().ok();
        let below = |folder: &str| {
            let folder = dir.join(folder);
            sysfs::names_or_none(&folder).into_iter().map(move |name| folder.join(name))
        };
        let group = drive.iommu_group.as_ref().into_iter().flat_map(|group| {
            let class = self.path("/sys/class/vfio");
            [class.join(group.id.to_string()), class.join(format!("noiommu-{}", group.id))]
        });
        group.chain(below("vfio-dev")).chain(below("uio")).filter_map(dev).collect()
    }
}

fn whole(drive: Drive, namespace: Option<u32>) -> Target {
    Target::Drive { drive: Box::new(drive), namespace }
}

fn wrong(name: &str, seen: &str, remedy: &str) -> HostError {
    let name = if name.is_empty() { "\"\"" } else { name };
    HostError::Target { name: name.into(), seen: seen.into(), remedy: remedy.into() }
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}
