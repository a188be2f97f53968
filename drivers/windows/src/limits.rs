//! The named maxima of this crate.

/// Most disks or volumes that are looked at.
pub const DEVICES_MAX: usize = 4096;
/// Most bytes of one answer of a device.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Most partitions whose entries are asked for; a GPT has 128 as a rule.
pub const PARTITIONS_MAX: usize = 1024;
/// Most processors of one group (Windows' `KAFFINITY` has 64 bits).
pub const GROUP_PROCESSORS_MAX: u32 = 64;
