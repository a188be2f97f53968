//! Whether a kernel driver is there, or could be loaded.

use crate::Host;
use crate::bind::UserDriver;
use crate::limits;
use crate::sysfs;

/// Where a kernel driver stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is in the kernel now: loaded, or built in.
    There,
    /// Its module is installed, and modprobe would load it.
    Loadable,
    /// It can not be had as things are; the text says why.
    Missing(String),
    /// That could not be told.
    NotKnown,
}

impl Host {
    /// Whether [`Host::take`](crate::Host::take) would find the driver.
    pub fn driver_presence(&self, driver: UserDriver) -> Presence {
        if self.path("/sys/bus/pci/drivers").join(driver.name()).exists() {
            return Presence::There;
        }
        self.module_presence(&driver.name().replace('-', "_"))
    }

    /// Whether a module is loaded, built in or installed for this kernel (modules.dep(5),
    /// modules.builtin of Documentation/kbuild/kbuild.rst).
    fn module_presence(&self, module: &str) -> Presence {
        if self.path("/sys/module").join(module).exists() {
            return Presence::There;
        }
        let Some(release) = self.kernel_release() else { return Presence::NotKnown };
        let folder = self.path("/lib/modules").join(&release);
        let lists = |file: &str| {
            let bytes = sysfs::read(&folder.join(file), limits::PROC_FILE_BYTES_MAX).ok()?;
            Some(names_module(&String::from_utf8_lossy(&bytes), module))
        };
        if lists("modules.builtin") == Some(true) {
            return Presence::There;
        }
        match lists("modules.dep") {
            Some(true)
                if sysfs::number(self.path("/proc/sys/kernel/modules_disabled")) == Some(1) =>
            {
                Presence::Missing(
                    "loading modules is forbidden (kernel.modules_disabled)".to_owned(),
                )
            }
            Some(true) => Presence::Loadable,
            Some(false) => {
                Presence::Missing(format!("this kernel ({release}) has no module {module}"))
            }
            None if folder.is_dir() => Presence::NotKnown,
            None => Presence::Missing(format!(
                "no modules are installed for this kernel (/lib/modules/{release})"
            )),
        }
    }
}

/// Whether a list of module files names one: `kernel/drivers/vfio/pci/vfio-pci.ko.xz: …`. A dash
/// in a file's name is an underscore in the module's.
fn names_module(list: &str, module: &str) -> bool {
    list.lines().any(|line| {
        let file = line.split(':').next().unwrap_or(line).rsplit('/').next().unwrap_or(line);
        file.split(".ko").next().is_some_and(|name| name.replace('-', "_") == module)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_under_any_compression_and_by_whole_names() {
        let list = "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz\n\
                    kernel/drivers/vfio/pci/vfio-pci-core.ko: x\nkernel/drivers/uio/uio.ko.zst:\n";
        assert!(names_module(list, "vfio_pci"));
        assert!(names_module(list, "uio"));
        assert!(!names_module(list, "uio_pci_generic"));
        assert!(!names_module(list, "vfio"), "a dependency is named elsewhere in the list");
        assert!(!names_module("", "uio"));
    }
}
