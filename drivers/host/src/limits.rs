//! Every maximum of this crate, by name: no wait, file or walk is without one.

use std::time::Duration;

/// One write to a sysfs attribute. Unbinding a controller that no longer answers takes the
/// kernel an admin timeout (60 s) and its shutdown; past this it hangs.
pub const SYSFS_WRITE_MAX: Duration = Duration::from_secs(120);

/// From the return of a probe or an unbind until the driver link says so.
pub const DRIVER_CHANGE_MAX: Duration = Duration::from_secs(10);

/// From a bind until `/dev/vfio/GROUP` or `/dev/uioN` is there.
pub const NODE_APPEARS_MAX: Duration = Duration::from_secs(10);

/// From a give-back until the block nodes of the namespaces are there again. The kernel scans
/// them after the probe has returned.
pub const NAMESPACES_BACK_MAX: Duration = Duration::from_secs(30);

/// From a step that failed because the drive is being unplugged until its folder in sysfs is gone.
pub const REMOVAL_MAX: Duration = Duration::from_secs(3);

/// One run of modprobe.
pub const MODPROBE_MAX: Duration = Duration::from_secs(20);

/// Between two looks while one of the waits above runs.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Tries of an exclusive open before a node counts as claimed: another `nvpoll` (or `blkid`)
/// that looks at the same moment holds such a claim for an instant.
pub const CLAIM_TRIES: u32 = 4;

/// Between two such tries.
pub const CLAIM_INTERVAL: Duration = Duration::from_millis(30);

/// Tries to lock a drive while others make and remove its lock file.
pub const LOCK_TRIES: u32 = 8;

/// One sysfs attribute: the kernel's own limit is a page.
pub const ATTRIBUTE_BYTES_MAX: u64 = 64 << 10;

/// One file of procfs, such as a mount table.
pub const PROC_FILE_BYTES_MAX: u64 = 64 << 20;

/// One record of a taken drive.
pub const RECORD_BYTES_MAX: u64 = 256 << 10;

/// What a lock file says of its holder, in characters.
pub const HOLDER_CHARS_MAX: usize = 80;

/// Names below `/dev/disk` that a record keeps for one drive.
pub const ALIASES_MAX: usize = 128;

/// Device upon device upon device (partition, md, dm-crypt, LVM, loop …).
pub const LAYERS_MAX: usize = 4096;

/// Drives, uses or names that one message counts up; it says how many it leaves out.
pub const NAMES_IN_MESSAGE_MAX: usize = 8;

/// Read in one piece while looking for signatures, in bytes.
pub const SIGNATURE_READ_BYTES: usize = 64 << 10;

/// How long a node may still be open by a passing visitor (udev, blkid) before a take is refused.
pub const VISITORS_MAX: Duration = Duration::from_millis(1500);

/// Between two looks at such visitors.
pub const VISITORS_INTERVAL: Duration = Duration::from_millis(100);
