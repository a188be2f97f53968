//! What a user's sessions may lock, as far as files tell: limits.conf(5) and systemd-system.conf(5).

use std::path::{Path, PathBuf};

use super::User;
use crate::Host;
use crate::limits;
use crate::sysfs;

/// A limit on locked memory that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaidLimit {
    /// The file.
    pub file: PathBuf,
    /// The line, blanks made one.
    pub line: String,
    /// The limit in bytes; `None` is no limit.
    pub bytes: Option<u64>,
}

/// What is said of the memory that a user may lock. What a session really gets depends on how it
/// is begun: pam_limits applies the first only where the login's PAM service asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// What pam_limits sets as the soft limit.
    pub pam_soft: Option<SaidLimit>,
    /// What pam_limits sets as the hard limit.
    pub pam_hard: Option<SaidLimit>,
    /// systemd's `DefaultLimitMEMLOCK`, for its services and what they start.
    pub systemd: Option<SaidLimit>,
}

/// Which of two lines for one user holds: the more particular, and of equals the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Everybody,
    Group,
    User,
}

const SECURITY: &str = "/etc/security";
/// Folders of systemd's settings, the later ones override.
const SYSTEMD: [&str; 3] = ["/usr/lib/systemd", "/run/systemd", "/etc/systemd"];

impl Host {
    /// What the system's files say of a user's limit on locked memory.
    pub fn user_limits(&self, user: &User) -> UserLimits {
        let (mut soft, mut hard) = (None, None);
        for file in self.conf_files(SECURITY, "limits") {
            for line in self.lines_of(&file) {
                let Some((rank, kind, bytes)) = pam_line(&line, user) else { continue };
                let said = SaidLimit { file: file.clone(), line: line.clone(), bytes };
                if kind != "hard" {
                    replace(&mut soft, rank, said.clone());
                }
                if kind != "soft" {
                    replace(&mut hard, rank, said);
                }
            }
        }
        let said = |found: Option<(Rank, SaidLimit)>| found.map(|(_, said)| said);
        UserLimits { pam_soft: said(soft), pam_hard: said(hard), systemd: self.systemd_limit() }
    }

    fn systemd_limit(&self) -> Option<SaidLimit> {
        let files = SYSTEMD.iter().flat_map(|dir| self.conf_files(dir, "system"));
        let mut found = None;
        for file in files {
            for line in self.lines_of(&file) {
                let Some(value) = line.strip_prefix("DefaultLimitMEMLOCK") else { continue };
                let value = value.trim_start().trim_start_matches('=').trim().to_owned();
                // `soft:hard`, or one for both.
                let soft = value.split(':').next().unwrap_or(&value);
                let Some(bytes) = systemd_bytes(soft) else { continue };
                found = Some(SaidLimit { file: file.clone(), line, bytes });
            }
        }
        found
    }

    /// `NAME.conf` of a folder and what is in `NAME.conf.d` or `NAME.d`, in order.
    fn conf_files(&self, folder: &str, name: &str) -> Vec<PathBuf> {
        let folder = Path::new(folder);
        let mut files = vec![folder.join(format!("{name}.conf"))];
        for dropins in [format!("{name}.d"), format!("{name}.conf.d")] {
            let dropins = folder.join(dropins);
            let names = sysfs::names_or_none(self.path(&dropins));
            let conf = names.into_iter().filter(|name| name.ends_with(".conf"));
            files.extend(conf.map(|name| dropins.join(name)));
        }
        files
    }

    /// Lines without comments and needless blanks.
    fn lines_of(&self, file: &Path) -> Vec<String> {
        let bytes = sysfs::read(&self.path(file), limits::ATTRIBUTE_BYTES_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let bare = |line: &str| {
            let line = line.split('#').next().unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        text.lines().map(bare).filter(|line| !line.is_empty()).collect()
    }
}

fn replace(slot: &mut Option<(Rank, SaidLimit)>, rank: Rank, said: SaidLimit) {
    if slot.as_ref().is_none_or(|(before, _)| *before <= rank) {
        *slot = Some((rank, said));
    }
}

/// A line of limits.conf(5) about locked memory that holds for a user: `DOMAIN TYPE memlock KIB`.
fn pam_line<'a>(line: &'a str, user: &User) -> Option<(Rank, &'a str, Option<u64>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [domain, kind, "memlock", value] = words.as_slice() else { return None };
    let rank = match domain.strip_prefix('@') {
        Some(group) if user.group_names.iter().any(|name| name == group) => Rank::Group,
        Some(_) => return None,
        // Neither groups nor everybody are meant to hold for root.
        None if *domain == "*" && user.uid != 0 => Rank::Everybody,
        None if *domain == user.name || is_range_of(domain, user.uid) => Rank::User,
        None => return None,
    };
    let bytes = match *value {
        "unlimited" | "infinity" | "-1" => None,
        kib => Some(kib.parse::<u64>().ok()?.checked_mul(1024)?),
    };
    Some((rank, kind, bytes))
}

/// A range of user numbers: `1000:2000`, `1000:` from there on, `:1000` that one alone.
fn is_range_of(domain: &str, uid: u32) -> bool {
    let Some((first, last)) = domain.split_once(':') else { return false };
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&uid),
        (Ok(first), Err(_)) => last.is_empty() && uid >= first,
        (Err(_), Ok(last)) => first.is_empty() && uid == last,
        (Err(_), Err(_)) => false,
    }
}

/// `64M`, `infinity`: to the base of 1024 (systemd.exec(5)).
fn systemd_bytes(text: &str) -> Option<Option<u64>> {
    if text == "infinity" {
        return Some(None);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" | "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    Some(Some(digits.parse::<u64>().ok()?.checked_mul(1 << shift)?))
}
