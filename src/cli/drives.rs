//! `list`, `bind` and `unbind`, and the word about what a crash left behind.

use super::Done;
use super::args::{BindArgs, Command, ListArgs, UnbindArgs};
use super::out::{say, tell};
use super::signals;
use crate::failure::Failure;
use crate::preflight::{self, BindWish, Binding, Subject, What, may_bind, user_access};
use crate::run::Control;
use crate::workload::units::format_size;
use comfy_table::{Table, presets::NOTHING};
use nvpoll_host::machine::User;
use nvpoll_host::{
    Drive, GiveBackOptions, GivenBack, Holder, Host, HostError, Leftover, Outcome, UserDriver,
};
use nvpoll_spec::PciAddress;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Tells on stderr of drives that a process which is gone left with a userspace driver, or half-way
/// to one.
pub fn tell_leftovers(command: &Command) {
    if matches!(command, Command::Unbind(_)) {
        return;
    }
    let told = |error: HostError| tell!("nvpoll: warning: {error}");
    let to_be_known = |left: &Leftover| left.is_orphan() || left.is_unfinished();
    match Host::system().leftovers_one_by_one() {
        Err(error) => told(error),
        Ok(leftovers) => leftovers.into_iter().for_each(|leftover| match leftover {
            Ok(leftover) if to_be_known(&leftover) => tell!("nvpoll: warning: {leftover}"),
            Ok(_) => {}
            Err(error) => told(error),
        }),
    }
}

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    drive: Drive,
    uses: Vec<nvpoll_host::Use>,
}

/// `nvpoll list`
pub fn list(args: &ListArgs) -> Done {
    let host = Host::system();
    let named = args.targets.iter().map(|name| drive_of(&host, name).map(|drive| *drive));
    let drives: Vec<Drive> = match args.targets.as_slice() {
        [] => host.drives()?,
        _ => named.collect::<Result<_, _>>()?,
    };
    let survey = host.survey()?;
    let listed: Vec<Listed> =
        drives.into_iter().map(|drive| Listed { uses: survey.uses(&drive), drive }).collect();
    if args.json {
        let text = serde_json::to_string_pretty(&listed);
        say!("{}", text.map_err(|error| Failure::failed(error.to_string()))?)?;
        return Ok(0);
    }
    if listed.is_empty() {
        say!(
            "no NVMe drive: no PCI function of class 01.08.02 is here; `nvpoll compare` runs on a soft drive"
        )?;
        return Ok(0);
    }
    print_table(&listed)?;
    Ok(0)
}

fn print_table(listed: &[Listed]) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([
        "address",
        "model",
        "serial",
        "firmware",
        "namespace",
        "size",
        "LBA",
        "NUMA",
        "IOMMU",
        "link",
        "driver",
        "in use by",
    ]);
    for Listed { drive, uses } in listed {
        let record = drive.record.as_ref();
        // What a taken drive was, the kernel does not say any more; the record does.
        let known = |now: &Option<String>, then: Option<&Option<String>>| {
            now.as_ref().or(then.and_then(Option::as_ref)).cloned().unwrap_or_else(unknown)
        };
        let uses: Vec<String> = uses.iter().map(ToString::to_string).collect();
        let (nodes, sizes, blocks) = namespaces(drive);
        table.add_row([
            drive.address.to_string(),
            known(&drive.model, record.map(|record| &record.model)),
            known(&drive.serial, record.map(|record| &record.serial)),
            known(&drive.firmware, record.map(|record| &record.firmware)),
            nodes,
            sizes,
            blocks,
            drive.numa_node.map_or_else(unknown, |node| node.to_string()),
            drive.iommu_group.as_ref().map_or_else(unknown, group),
            link(drive),
            drive.driver.clone().unwrap_or_else(unknown),
            if uses.is_empty() { "nobody".to_owned() } else { uses.join("\n") },
        ]);
    }
    for line in table.lines() {
        say!("{}", line.trim_end())?;
    }
    Ok(())
}

fn unknown() -> String {
    "-".to_owned()
}

/// Nodes, sizes and blocks of a drive's namespaces, a line each; of a taken drive as it was found.
fn namespaces(drive: &Drive) -> (String, String, String) {
    let mut lines: Vec<[String; 3]> = Vec::new();
    for namespace in &drive.namespaces {
        let node = namespace.node.as_ref().map(|node| node.display().to_string());
        let block = match namespace.metadata_bytes {
            Some(0) | None => namespace.lba_bytes.to_string(),
            Some(metadata) => format!("{}+{metadata}", namespace.lba_bytes),
        };
        lines.push([
            node.unwrap_or_else(|| format!("nsid {}", namespace.nsid)),
            format_size(namespace.size_bytes),
            block,
        ]);
    }
    let found = drive.record.iter().flat_map(|record| &record.namespaces);
    for namespace in found.filter(|_| drive.namespaces.is_empty()) {
        let node = namespace.node.as_ref().map(|node| format!("(was {})", node.display()));
        lines.push([
            node.unwrap_or_else(|| format!("nsid {}", namespace.nsid)),
            format_size(namespace.size_bytes),
            unknown(),
        ]);
    }
    let column = |index: usize| match lines.as_slice() {
        [] => unknown(),
        lines => lines.iter().map(|line| line[index].as_str()).collect::<Vec<_>>().join("\n"),
    };
    (column(0), column(1), column(2))
}

/// A group's number, and its other members, a line each.
fn group(group: &nvpoll_host::IommuGroup) -> String {
    let others = group.others.iter().map(|address| format!("with {address}"));
    std::iter::once(group.id.to_string()).chain(others).collect::<Vec<_>>().join("\n")
}

/// The link now, and at most where that is more.
fn link(drive: &Drive) -> String {
    let text = |link: nvpoll_host::Link| format!("{} GT/s x{}", link.speed_gts, link.width);
    match (drive.link_now, drive.link_max) {
        (Some(now), Some(most)) if now != most => format!("{} (of {})", text(now), text(most)),
        (Some(now), _) => text(now),
        (None, _) => unknown(),
    }
}

/// The address of the drive that a name leads to.
fn drive_of(host: &Host, name: &str) -> Result<Box<Drive>, Failure> {
    let subject = Subject::resolve(host, name)?;
    match subject.what {
        What::Drive { drive, .. } => Ok(drive),
        _ => Err(Failure::usage(format!(
            "{name} is {}, not an NVMe drive; `nvpoll list` shows them",
            subject.describe()
        ))),
    }
}

/// What `bind` does with one drive.
enum Plan {
    /// Hands it over.
    Take(Binding),
    /// It is handed over already, and gets another owner.
    Give,
}

/// A signal does not end the process in the middle of a drive, when no driver may have it, but
/// after it.
fn stop_between_drives() -> Result<Arc<Control>, Failure> {
    let control = Arc::new(Control::new());
    signals::on_signals(&control, "stopping when this drive is done", "still at this drive")?;
    Ok(control)
}

fn stopped(address: &PciAddress, done: &str) -> Failure {
    Failure::failed(format!("stopped by a signal before {address} was {done}"))
}

/// `nvpoll bind`
pub fn bind(args: &BindArgs) -> Done {
    let control = stop_between_drives()?;
    let host = Host::system();
    let user = args.user.as_deref().map(|name| user(&host, name)).transpose()?;
    // All are resolved and asked for before the first is touched.
    let drives: Vec<Box<Drive>> =
        args.targets.iter().map(|name| drive_of(&host, name)).collect::<Result<_, _>>()?;
    let wish = BindWish { driver: args.driver, allow_no_iommu: args.unsafe_no_iommu };
    let plans: Vec<Plan> = drives
        .iter()
        .map(|drive| plan_bind(&host, drive, &wish, user.as_ref()))
        .collect::<Result<_, _>>()?;
    for (drive, plan) in drives.iter().zip(plans) {
        if control.is_stopped() {
            return Err(stopped(&drive.address, "bound"));
        }
        let given = match plan {
            Plan::Take(binding) => take(&host, drive, &binding, user.as_ref())?,
            Plan::Give => match &user {
                Some(user) => host.give_to(drive.address, user.uid, user.gid)?,
                None => Vec::new(),
            },
        };
        if let Some(user) = &user {
            let nodes: Vec<String> = given.iter().map(|node| node.display().to_string()).collect();
            let User { name, uid, .. } = user;
            say!("{}: given to {name} (user {uid}): {}", drive.address, nodes.join(", "))?;
        }
    }
    for line in user.iter().flat_map(|user| user_access::lacks(&host, user)) {
        say!("  {line}")?;
    }
    Ok(0)
}

/// The user of that name.
fn user(host: &Host, name: &str) -> Result<User, Failure> {
    host.user(name).map_err(|error| {
        Failure::usage(format!(
            "--user {name}: {error}; name a user of this machine (`getent passwd` lists them)"
        ))
    })
}

fn plan_bind(
    host: &Host,
    drive: &Drive,
    wish: &BindWish,
    user: Option<&User>,
) -> Result<Plan, Failure> {
    let holder = drive.record.as_ref().map(|record| &record.holder);
    let bound = drive.driver.as_deref().and_then(UserDriver::from_name);
    let (plan, driver) = match (user, holder, bound) {
        (Some(_), Some(Holder::Persistent), Some(driver)) => (Plan::Give, driver),
        _ => {
            let binding = may_bind(host, drive, wish)?;
            let found = preflight::contents_of(host, drive)?;
            if !found.is_empty() {
                let (address, found) = (drive.address, found.join(", "));
                tell!("nvpoll: {address} holds {found}; reading leaves it as it is");
            }
            let driver = binding.driver;
            (Plan::Take(binding), driver)
        }
    };
    if let Some(user) = user {
        host.check_may_own(drive, driver, user.uid)?;
    }
    Ok(plan)
}

/// Hands a drive over, and its nodes to a user; returns what was given.
fn take(
    host: &Host,
    drive: &Drive,
    binding: &Binding,
    user: Option<&User>,
) -> Result<Vec<PathBuf>, Failure> {
    let Binding { driver, why, options } = binding;
    let taken = host.take(drive, *driver, options)?;
    warn_without_iommu(host, drive, *driver);
    let nodes: Vec<String> = taken.nodes().iter().map(|node| node.display().to_string()).collect();
    say!(
        "{}: {} ({}) is now with {} ({why}), through {}; `nvpoll unbind {}` gives it back to {}",
        drive.address,
        drive.label(),
        drive
            .namespaces
            .iter()
            .filter_map(|ns| ns.node.as_ref())
            .map(|node| node.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
        taken.driver().name(),
        nodes.join(", "),
        drive.address,
        drive.driver.as_deref().unwrap_or("no driver"),
    )?;
    match user {
        Some(user) => Ok(host.set_owner(&taken, user.uid, user.gid)?),
        None => Ok(Vec::new()),
    }
}

/// Says plainly what nobody protects.
pub fn warn_without_iommu(host: &Host, drive: &Drive, driver: UserDriver) {
    if driver == UserDriver::UioPciGeneric || !host.has_iommu(drive) {
        let address = drive.address;
        tell!(
            "nvpoll: warning: {address}: no IOMMU keeps this drive from this machine's memory; a fault of the drive or of nvpoll can overwrite any of it, also while it ends by SIGKILL"
        );
    }
}

/// `nvpoll unbind`
pub fn unbind(args: &UnbindArgs) -> Done {
    let control = stop_between_drives()?;
    let host = Host::system();
    let mut worst = 0;
    let addresses =
        if args.all { all_left(&host, &mut worst)? } else { named(&host, &args.targets)? };
    if addresses.is_empty() && worst == 0 {
        say!("nothing to give back: nvpoll has taken no drive here")?;
    }
    let options = GiveBackOptions { to: args.to.clone() };
    for address in addresses {
        if control.is_stopped() {
            return Err(stopped(&address, "given back"));
        }
        match host.give_back(address, &options) {
            Ok(given) => {
                say!("{}", describe(&given))?;
                worst = worst.max(u8::from(!given.namespaces_back));
            }
            Err(error) => {
                tell!("nvpoll: {error}");
                worst = worst.max(Failure::from(error).exit_status());
            }
        }
    }
    Ok(worst)
}

/// Every drive that nvpoll has taken, but for those that a living process holds. A record that
/// cannot be trusted is told, and raises the exit status to be; the others are given back.
fn all_left(host: &Host, worst: &mut u8) -> Result<Vec<PciAddress>, Failure> {
    let mut addresses = Vec::new();
    for leftover in host.leftovers_one_by_one()? {
        let leftover = match leftover {
            Ok(leftover) => leftover,
            Err(error) => {
                tell!("nvpoll: {error}");
                *worst = (*worst).max(Failure::from(error).exit_status());
                continue;
            }
        };
        if leftover.alive && !matches!(leftover.holder, Holder::Persistent) {
            say!("left alone: {leftover}")?;
        } else {
            addresses.push(leftover.address);
        }
    }
    Ok(addresses)
}

fn named(host: &Host, names: &[String]) -> Result<Vec<PciAddress>, Failure> {
    let address = |name: &String| match name.parse() {
        // A drive that was unplugged has a record, but is nowhere to be resolved.
        Ok(address) => Ok(address),
        Err(_) => drive_of(host, name).map(|drive| drive.address),
    };
    names.iter().map(address).collect()
}

fn describe(given: &GivenBack) -> String {
    let GivenBack { address, driver, .. } = given;
    let driver = driver.as_deref().unwrap_or("no driver");
    let done = match given.outcome {
        Outcome::Restored => format!("{address}: back with {driver}"),
        Outcome::AsItWas => format!("{address}: with {driver}, as it was"),
        Outcome::Gone => format!("{address}: the drive is gone from here; its record was removed"),
        Outcome::EarlierBoot => format!("{address}: taken before the last boot; nothing to do"),
        Outcome::Given => format!("{address}: given to {driver}"),
    };
    let missing: Vec<String> =
        given.missing.iter().map(|node| node.display().to_string()).collect();
    let renamed: Vec<String> = given
        .renamed
        .iter()
        .map(|(from, to)| format!("{} is now {}", from.display(), to.display()))
        .collect();
    match (missing.is_empty(), renamed.is_empty()) {
        (true, true) => done,
        (false, _) => format!(
            "{done}, but {} did not come back; look at the kernel's log",
            missing.join(", ")
        ),
        (true, false) => format!("{done}; {}", renamed.join(", ")),
    }
}
