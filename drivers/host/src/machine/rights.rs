//! Who this process is and what it may do, and who a user is.

use crate::Host;
use crate::limits;
use crate::sysfs;

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User number.
    pub uid: u32,
    /// Primary group's number.
    pub gid: u32,
    /// All groups' numbers, the primary one among them.
    pub groups: Vec<u32>,
    /// The groups' names, as far as they are known.
    pub group_names: Vec<String>,
}

/// This process's rights (proc_pid_status(5), capabilities(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Effective user.
    pub uid: Option<u32>,
    /// Effective capabilities, a bit each.
    pub capabilities: Option<u64>,
}

impl Rights {
    /// Bits of capabilities that matter here (include/uapi/linux/capability.h).
    const IPC_LOCK: u32 = 14;
    const SYS_RAWIO: u32 = 17;
    const SYS_ADMIN: u32 = 21;

    fn has(&self, bit: u32) -> Option<bool> {
        self.capabilities.map(|bits| bits >> bit & 1 == 1)
    }

    /// CAP_IPC_LOCK: locked memory is not limited.
    pub fn ipc_lock(&self) -> Option<bool> {
        self.has(Self::IPC_LOCK)
    }

    /// CAP_SYS_RAWIO: VFIO without an IOMMU may be opened.
    pub fn sys_rawio(&self) -> Option<bool> {
        self.has(Self::SYS_RAWIO)
    }

    /// CAP_SYS_ADMIN: /proc/self/pagemap shows physical addresses
    /// (Documentation/admin-guide/mm/pagemap.rst).
    pub fn sys_admin(&self) -> Option<bool> {
        self.has(Self::SYS_ADMIN)
    }
}

impl Host {
    /// This process's rights.
    pub fn rights(&self) -> Rights {
        let path = self.path(format!("/proc/{}/status", std::process::id()));
        let text = sysfs::text(path).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        // Real, effective, saved and file system's.
        let uid = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
        let capabilities = field("CapEff:").and_then(|bits| u64::from_str_radix(&bits, 16).ok());
        Rights { uid, capabilities }
    }

    /// The login name of a user number, as far as /etc/passwd has it.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        let bytes = sysfs::read(&self.path("/etc/passwd"), limits::PROC_FILE_BYTES_MAX).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let number = uid.to_string();
        let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
        lines.find_map(|fields| match fields.as_slice() {
            [name, _, found, ..] if *found == number => Some((*name).to_owned()),
            _ => None,
        })
    }

    /// The user of that name.
    ///
    /// # Errors
    /// What the system's list of users answers; `NotFound` when there is none of that name.
    pub fn user(&self, name: &str) -> std::io::Result<User> {
        let unknown = || std::io::Error::new(std::io::ErrorKind::NotFound, "no such user");
        self.kernel.user(name)?.ok_or_else(unknown)
    }
}

#[cfg(any(test, feature = "fake"))]
/// A line of passwd(5) and the groups of group(5) as a user.
pub(crate) fn parse_user(passwd: &str, group: &str, name: &str) -> Option<User> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let (uid, gid) = fields.into_iter().find_map(|fields| match fields.as_slice() {
        [found, _, uid, gid, ..] if *found == name => Some((uid.parse().ok()?, gid.parse().ok()?)),
        _ => None,
    })?;
    let (groups, group_names) = parse_groups(group, name, gid);
    Some(User { name: name.to_owned(), uid, gid, groups, group_names })
}

/// The groups that a user is in: numbers and names.
pub(crate) fn parse_groups(group: &str, name: &str, gid: u32) -> (Vec<u32>, Vec<String>) {
    let (mut numbers, mut names) = (vec![gid], Vec::new());
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [group, _, number, members, ..] = fields.as_slice() else { continue };
        let Ok(number) = number.parse() else { continue };
        if number == gid || members.split(',').any(|member| member.trim() == name) {
            names.push((*group).to_owned());
            if number != gid {
                numbers.push(number);
            }
        }
    }
    (numbers, names)
}
