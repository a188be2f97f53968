//! Block devices that the kernel offers to other machines: NVMe and SCSI targets. They open a
//! device without a claim that others would see, so their configuration is read (configfs).

use std::path::{Path, PathBuf};

use super::layers::Layer;
use super::{Use, UseKind, plain};
use crate::Host;
use crate::sysfs;

impl Host {
    pub(super) fn exports_of(&self, layers: &[Layer]) -> Vec<Use> {
        let mut uses = Vec::new();
        for (path, place) in self.nvme_exports().into_iter().chain(self.scsi_exports()) {
            for layer in layers.iter().filter(|layer| self.leads_to(&path, layer)) {
                uses.push(plain(UseKind::Exported, &layer.node, place.clone()).resting_on(layer));
            }
        }
        uses
    }

    /// `nvmet/subsystems/NQN/namespaces/ID/device_path`, where `enable` says 1.
    fn nvme_exports(&self) -> Vec<(PathBuf, String)> {
        let subsystems = self.path("/sys/kernel/config/nvmet/subsystems");
        let mut exports = Vec::new();
        for nqn in sysfs::names_or_none(&subsystems) {
            let namespaces = subsystems.join(&nqn).join("namespaces");
            for id in sysfs::names_or_none(&namespaces) {
                let dir = namespaces.join(&id);
                let enabled = sysfs::number(dir.join("enable")) == Some(1u8);
                if let (true, Some(path)) = (enabled, sysfs::value(dir.join("device_path"))) {
                    exports.push((PathBuf::from(path), format!("NVMe target {nqn} (nsid {id})")));
                }
            }
        }
        exports
    }

    /// `target/core/iblock_N/NAME/udev_path`.
    fn scsi_exports(&self) -> Vec<(PathBuf, String)> {
        let core = self.path("/sys/kernel/config/target/core");
        let mut exports = Vec::new();
        for adapter in sysfs::names_or_none(&core) {
            for name in sysfs::names_or_none(core.join(&adapter)) {
                let dir: &Path = &core.join(&adapter).join(&name);
                if let Some(path) = sysfs::value(dir.join("udev_path")) {
                    exports.push((PathBuf::from(path), format!("SCSI target {adapter}/{name}")));
                }
            }
        }
        exports
    }
}
