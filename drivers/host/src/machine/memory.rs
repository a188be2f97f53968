//! Huge pages (Documentation/admin-guide/mm/hugetlbpage.rst).

use crate::Host;
use crate::sysfs;

/// The pool of one size on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePages {
    /// NUMA node; `None` where the kernel has no nodes.
    pub node: Option<u32>,
    /// Bytes a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Of them not in use.
    pub free: u64,
}

impl Host {
    /// Every pool, empty ones too.
    pub(super) fn huge_pages(&self) -> Vec<HugePages> {
        let nodes = self.path("/sys/devices/system/node");
        let mut pools = Vec::new();
        for name in sysfs::names_or_none(&nodes) {
            let Some(Ok(node)) = name.strip_prefix("node").map(str::parse) else { continue };
            pools.extend(self.pools(&nodes.join(name).join("hugepages"), Some(node)));
        }
        if pools.is_empty() {
            pools = self.pools(&self.path("/sys/kernel/mm/hugepages"), None);
        }
        pools.sort();
        pools
    }

    /// The sizes of one folder, each `hugepages-2048kB`.
    fn pools(&self, dir: &std::path::Path, node: Option<u32>) -> Vec<HugePages> {
        let pool = |name: String| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let number = |file: &str| sysfs::number(dir.join(&name).join(file));
            Some(HugePages {
                node,
                page_bytes: kib.checked_mul(1024)?,
                total: number("nr_hugepages")?,
                free: number("free_hugepages")?,
            })
        };
        sysfs::names_or_none(dir).into_iter().filter_map(pool).collect()
    }
}
