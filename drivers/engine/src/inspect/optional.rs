//! What a controller may have or not: optional commands, power states, its error log.

use super::{Section, section, text};
use nvpoll_spec::{ApstEntry, Capabilities, ControllerIdentity, ErrorLogEntry, FirmwareLog};

/// Errors that are shown.
const ERRORS_SHOWN: usize = 16;

/// Autonomous Power State Transition, as read: whether it is on, and the table by power state.
pub(crate) type Transitions = (bool, Vec<ApstEntry>);

/// What is offered, and after it what is not.
fn offered(all: &[(&str, bool)]) -> String {
    let names = |wanted: bool| -> Vec<&str> {
        all.iter().filter(|(_, is_there)| *is_there == wanted).map(|(name, _)| *name).collect()
    };
    match (names(true), names(false)) {
        (there, missing) if missing.is_empty() => there.join(", "),
        (there, missing) if there.is_empty() => format!("none of {}", missing.join(", ")),
        (there, missing) => format!("{}; not {}", there.join(", "), missing.join(", ")),
    }
}

/// What concerns queues and data, is offered, and is left unused by the userspace driver.
pub(super) fn unused(capabilities: Capabilities, id: &ControllerIdentity) -> String {
    let features = [
        ("controller memory buffer (CAP.CMBS)", capabilities.controller_memory()),
        ("weighted round robin (CAP.AMS)", capabilities.arbitration() & 1 != 0),
        // SGLS (§5.15.2.2): bits 1:0 say that there are SGLs, bit 16 a bit bucket descriptor.
        ("SGL bit bucket (SGLS bit 16)", id.sgl & 3 != 0 && id.sgl >> 16 & 1 != 0),
    ];
    let there: Vec<&str> = features.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    if there.is_empty() { "nothing".to_owned() } else { there.join(", ") }
}

pub(super) fn offer_section(id: &ControllerIdentity) -> Section {
    let (nvm, admin) = (id.optional_commands(), id.optional_admin_commands());
    let event = |bit: u32| id.async_events >> bit & 1 != 0;
    let nvm = [
        ("compare", nvm.compare()),
        ("write uncorrectable", nvm.write_uncorrectable()),
        ("dataset management", nvm.dataset_management()),
        ("write zeroes", nvm.write_zeroes()),
        ("save and select", nvm.save_select()),
        ("reservations", nvm.reservations()),
        ("timestamp", nvm.timestamp()),
        ("verify", nvm.verify()),
        ("copy", nvm.copy()),
    ];
    let admin = [
        ("security", admin.security()),
        ("format", admin.format()),
        ("firmware", admin.firmware()),
        ("namespace management", admin.namespace_management()),
        ("self-test", admin.self_test()),
        ("directives", admin.directives()),
        ("management interface", admin.management_interface()),
        ("virtualization", admin.virtualization()),
        ("doorbell buffer", admin.doorbell_buffer()),
        ("LBA status", admin.lba_status()),
    ];
    let events = [
        ("namespace attributes", event(8)),
        ("firmware activation", event(9)),
        ("asymmetric access", event(11)),
        ("latency log", event(12)),
        ("LBA status", event(13)),
        ("endurance group", event(14)),
        ("zones", event(27)),
    ];
    section(
        "optional commands and events",
        vec![
            ("ONCS (NVM commands)", offered(&nvm)),
            ("OACS (admin commands)", offered(&admin)),
            ("OAES (events)", offered(&events)),
            ("ACL (aborts at a time)", (u32::from(id.aborts_z) + 1).to_string()),
            ("AERL (event requests held)", (u32::from(id.async_requests_z) + 1).to_string()),
        ],
    )
}

pub(super) fn power_section(
    id: &ControllerIdentity,
    current: Option<u32>,
    transitions: Option<&Result<Transitions, String>>,
) -> Section {
    let current = current.map(|value| value & 0x1f);
    let mut facts = Vec::new();
    for (index, state) in id.power_states().iter().enumerate() {
        let power = match state.power_uw_max() {
            0 => "power not said".to_owned(),
            uw => format!("{} W", f64::from(uw) / 1e6),
        };
        let no_io = if state.is_non_operational() { ", no I/O" } else { "" };
        let now = if current == u32::try_from(index).ok() { ", now" } else { "" };
        let (enter, leave) = (state.entry_us, state.exit_us);
        let value = format!("{power}, enter {enter} us, leave {leave} us{no_io}{now}");
        facts.push((format!("state {index}"), value));
    }
    let transitions = match transitions {
        None => "not there (APSTA)".to_owned(),
        Some(Err(why)) => format!("not read: {why}"),
        Some(Ok((on, table))) => describe_transitions(id, *on, table),
    };
    facts.push(("autonomous transitions (APST)".to_owned(), transitions));
    section("power", facts)
}

fn describe_transitions(id: &ControllerIdentity, on: bool, table: &[ApstEntry]) -> String {
    let states = table.iter().enumerate().take(id.power_states().len());
    let rows: Vec<String> = states
        .filter(|(_, entry)| entry.idle_ms() != 0)
        .map(|(from, entry)| format!("{from} to {} after {} ms", entry.state(), entry.idle_ms()))
        .collect();
    let on = if on { "on" } else { "off" };
    if rows.is_empty() {
        format!("{on}, no transition")
    } else {
        format!("{on}: {}", rows.join(", "))
    }
}

pub(super) fn error_section(errors: &Result<Vec<ErrorLogEntry>, String>) -> Section {
    const TITLE: &str = "error log";
    let entries = match errors {
        Err(why) => return section(TITLE, vec![("not read", why.clone())]),
        Ok(entries) if entries.is_empty() => {
            return section(TITLE, vec![("entries", "none".to_owned())]);
        }
        Ok(entries) => entries,
    };
    let mut facts: Vec<(String, String)> = entries
        .iter()
        .take(ERRORS_SHOWN)
        .map(|entry| {
            let command = match entry.cid {
                u16::MAX => "no command".to_owned(),
                cid => format!("queue {}, CID {cid:#06x}", entry.sq_id),
            };
            let place = match entry.nsid {
                0 => String::new(),
                nsid => format!(", namespace {nsid}, block {}", entry.lba),
            };
            (format!("error {}", entry.count), format!("{}: {command}{place}", entry.status()))
        })
        .collect();
    if let Some(more) = entries.len().checked_sub(ERRORS_SHOWN).filter(|more| *more > 0) {
        facts.push(("older".to_owned(), format!("{more} more")));
    }
    section(TITLE, facts)
}

pub(super) fn firmware_section(log: &Result<FirmwareLog, String>) -> Section {
    const TITLE: &str = "firmware slots";
    let log = match log {
        Err(why) => return section(TITLE, vec![("not read", why.clone())]),
        Ok(log) => log,
    };
    let (active, next) = (usize::from(log.active & 7), usize::from(log.active >> 4 & 7));
    let used = log.revisions.iter().enumerate().filter(|(_, revision)| **revision != [0; 8]);
    let facts = used
        .map(|(index, revision)| {
            let slot = index + 1;
            let active = if slot == active { ", active" } else { "" };
            let next = if slot == next { ", after the next reset" } else { "" };
            (format!("slot {slot}"), format!("{}{active}{next}", text(revision)))
        })
        .collect();
    section(TITLE, facts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_spec::Status;
    use zerocopy::{FromBytes, FromZeros};

    #[test]
    fn an_offer_names_both_sides() {
        assert_eq!(offered(&[("a", true), ("b", true)]), "a, b");
        assert_eq!(offered(&[("a", false), ("b", false)]), "none of a, b");
        assert_eq!(offered(&[("a", false), ("b", true)]), "b; not a");
    }

    #[test]
    fn what_is_offered_and_unused_is_named() {
        let told = |cap: Capabilities, oacs: u16, sgls: u32| {
            let mut id = ControllerIdentity::new_zeroed();
            (id.admin_commands, id.sgl) = (oacs, sgls);
            unused(cap, &id)
        };
        let cap = Capabilities::new();
        assert_eq!(told(cap, !(1 << 8), !(1 << 16)), "nothing");
        assert_eq!(told(cap.with_arbitration(2), 0, 1 << 16), "nothing", "no SGLs at all");
        let all = told(cap.with_arbitration(1).with_controller_memory(true), 1 << 8, 1 << 16 | 1);
        assert_eq!(
            all,
            "controller memory buffer (CAP.CMBS), weighted round robin (CAP.AMS), SGL bit bucket (SGLS bit 16)"
        );
        assert_eq!(told(cap, 1 << 8, 0), "nothing", "shadow doorbells have an option");
    }

    #[test]
    fn power_states_and_transitions() {
        let mut id = ControllerIdentity::new_zeroed();
        id.power_states_z = 1;
        (id.power_states[0].power_max, id.power_states[1].flags) = (850, 3);
        (id.power_states[1].power_max, id.power_states[1].exit_us) = (50, 9000);
        let table = Ok((true, vec![ApstEntry::new(1, 200), ApstEntry::default()]));
        let section = power_section(&id, Some(1), Some(&table));
        let values: Vec<_> = section.facts.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(
            values,
            [
                "8.5 W, enter 0 us, leave 0 us",
                "0.005 W, enter 0 us, leave 9000 us, no I/O, now",
                "on: 0 to 1 after 200 ms"
            ]
        );
    }

    #[test]
    fn errors_are_told_with_their_place() {
        let mut bytes = [0; 64];
        bytes[0] = 3;
        bytes[8] = 1;
        bytes[12..14].copy_from_slice(&Status::UNRECOVERED_READ.to_entry(false).to_le_bytes());
        (bytes[16], bytes[24]) = (7, 1);
        let entry = ErrorLogEntry::read_from_bytes(&bytes).unwrap();
        let section = error_section(&Ok(vec![entry; 20]));
        assert_eq!(section.facts.len(), ERRORS_SHOWN + 1);
        assert_eq!(section.facts[0].0, "error 3");
        let told = &section.facts[0].1;
        assert!(told.starts_with("Unrecovered Read Error"), "{told}");
        assert!(told.ends_with("queue 1, CID 0x0000, namespace 1, block 7"), "{told}");
    }
}
