//! Findings of one target.

use super::machine::{engine_of, interrupts, locked_memory};
use super::{Context, Finding, Step, TargetDiagnosis, Verdict};
use crate::failure::Failure;
use crate::preflight::{
    Binding, Subject, What, check_available, choose_engine, contents_of, may_bind,
};
use nvpoll_host::machine::QueueSettings;
use nvpoll_host::{Drive, Holder, HostError, UserDriver};

/// Everything that is asked of one target.
pub(super) fn diagnose(
    context: &Context<'_>,
    subject: &Subject,
) -> Result<TargetDiagnosis, Failure> {
    let What::Drive { drive, .. } = &subject.what else {
        let findings = vec![without_drive(context, subject)];
        let label = subject.describe().to_owned();
        return Ok(TargetDiagnosis::new(subject.name.clone(), label, Step::Run, findings));
    };
    let bound = drive.driver.as_deref().and_then(UserDriver::from_name);
    let (step, mut findings) = match bound {
        Some(driver) => (Step::Run, run(context, subject, drive, driver)?),
        None => (Step::Bind, bind(context, drive)),
    };
    findings.push(group(context, drive));
    findings.push(link(drive));
    findings.push(node(drive));
    for settings in context.host.queue_settings(drive) {
        findings.extend(queue(&settings));
    }
    Ok(TargetDiagnosis::new(subject.name.clone(), drive.summary(), step, findings))
}

/// A soft drive, a block device, a file: what `nvpoll run` would do with it.
fn without_drive(context: &Context<'_>, subject: &Subject) -> Finding {
    let (kind, why) = choose_engine(subject);
    let needed = format!("the engine {kind}: {why}");
    if let Err(error) = check_available(kind) {
        return Finding::blocks("run", "the engine is not available", &needed, error.text);
    }
    let path = match &subject.what {
        What::Block { node, .. } => node,
        What::File { path, .. } => path,
        _ => return Finding::ok("run", "nothing is in the way", &needed),
    };
    match context.host.check_readable(path) {
        Ok(()) => Finding::ok("run", "it may be read", &needed),
        Err(error) => {
            let remedy = format!("run as root, or as a user who may read {}", path.display());
            Finding::blocks("run", error.to_string(), &needed, remedy)
        }
    }
}

/// The kernel has the drive, or nobody: would `nvpoll bind` work?
fn bind(context: &Context<'_>, drive: &Drive) -> Vec<Finding> {
    const CHECK: &str = "bind";
    const NEEDED: &str = "a drive that nobody uses, a driver for it, and an IOMMU in front of it";
    const UNREADABLE: &str = "see in the kernel's log (dmesg) why it cannot be read";
    let now = drive.driver.as_deref().unwrap_or("no driver");
    match may_bind(context.host, drive, &context.wish) {
        Ok(binding) => {
            // `bind` looks at what lies on it, too, and takes no drive that it cannot read.
            if let Err(failure) = contents_of(context.host, drive) {
                return vec![Finding::blocks(CHECK, failure.text, NEEDED, UNREADABLE)];
            }
            let Binding { driver, why, .. } = binding;
            let found = format!("on {now}; `bind` hands it to {} ({why})", driver.name());
            vec![Finding::ok(CHECK, found, NEEDED)]
        }
        Err(error) => {
            let (found, remedy) = told(&error);
            let mut findings = vec![Finding::blocks(CHECK, found, NEEDED, remedy)];
            findings.extend(
                error.uses().iter().map(|one| {
                    Finding::blocks("in-use", one.to_string(), "nobody", "end this use")
                }),
            );
            findings
        }
    }
}

/// What was seen and what to do, in the words of the refusal.
fn told(error: &HostError) -> (String, String) {
    match error {
        HostError::Unsupported { seen, remedy, .. }
        | HostError::AlreadyTaken { seen, remedy, .. } => (seen.clone(), remedy.clone()),
        HostError::Refused(refusal) => {
            let count = refusal.uses.len();
            (
                format!("it is in use, in {count} ways"),
                "end every use that is listed here".to_owned(),
            )
        }
        other => (other.to_string(), "as it says".to_owned()),
    }
}

/// The drive is with a driver for userspace: would `nvpoll run` work?
fn run(
    context: &Context<'_>,
    subject: &Subject,
    drive: &Drive,
    driver: UserDriver,
) -> Result<Vec<Finding>, Failure> {
    let (kind, why) = choose_engine(subject);
    let needed = format!("the engine {kind}: {why}");
    let target = || subject.engine_target(context.host, kind).map(drop);
    let mut findings = vec![match check_available(kind).and_then(|()| target()) {
        Ok(()) if engine_of(driver).is_some() => {
            Finding::ok("run", format!("on {}", driver.name()), &needed)
        }
        Ok(()) => {
            let found = format!("on {}, which this build has no engine for", driver.name());
            let remedy = format!("nvpoll unbind {0}, then nvpoll bind {0}", drive.address);
            Finding::blocks("run", found, &needed, remedy)
        }
        Err(error) => Finding::blocks("run", "the engine cannot", &needed, error.text),
    }];
    findings.push(holder(context, drive)?);
    findings.push(nodes(context, drive));
    match (driver, context.host.has_iommu(drive)) {
        (UserDriver::VfioPci, true) => {
            let of_machine = [locked_memory(context), interrupts(&context.facts)];
            findings.extend(of_machine.into_iter().filter_map(as_block));
        }
        (UserDriver::VfioPci, false) if !context.wish.allow_no_iommu => {
            findings.push(Finding::blocks(
                "no-iommu",
                "no IOMMU stands in front of this drive, so it could write all memory of this machine",
                "an IOMMU, or --unsafe-no-iommu",
                "accept that with --unsafe-no-iommu, as when it was bound",
            ));
        }
        _ => {}
    }
    Ok(findings)
}

/// What rules VFIO out for the machine stands in the way of a drive that is on it.
fn as_block(finding: Finding) -> Option<Finding> {
    let rules_out = finding.rules_out.iter().any(|name| name == "vfio");
    rules_out.then_some(Finding { verdict: Verdict::Blocks, ..finding })
}

/// Whether a process has the drive, or left it.
fn holder(context: &Context<'_>, drive: &Drive) -> Result<Finding, Failure> {
    const CHECK: &str = "holder";
    const NEEDED: &str = "handed over to stay, and driven by nobody";
    let leftovers = context.host.leftovers()?;
    let held = leftovers.into_iter().find(|leftover| {
        leftover.address == drive.address && leftover.holder != Holder::Persistent
    });
    if let Some(held) = held {
        let remedy = match held.is_orphan() {
            true => format!("nvpoll unbind {}", drive.address),
            false => "wait until that process ends, or end it".to_owned(),
        };
        return Ok(Finding::blocks(CHECK, held.to_string(), NEEDED, remedy));
    }
    let uses = context.host.uses(drive)?;
    let driven = uses.iter().find(|found| found.kind == nvpoll_host::UseKind::UserspaceDriver);
    Ok(match (driven, &drive.record) {
        (Some(found), _) => {
            let remedy = "wait until that process ends, or end it";
            Finding::blocks(CHECK, found.to_string(), NEEDED, remedy)
        }
        // Processes of others cannot be looked into without root.
        (None, _) if context.facts.rights.uid != Some(0) && !uses.is_empty() => {
            Finding::not_known(CHECK, "only root sees who else has it open", NEEDED)
        }
        (None, Some(_)) => Finding::ok(CHECK, "handed over by `nvpoll bind`", NEEDED),
        (None, None) => Finding::ok(CHECK, "bound by another than nvpoll", NEEDED),
    })
}

/// Whether this user may open what the drive is driven through.
fn nodes(context: &Context<'_>, drive: &Drive) -> Finding {
    const CHECK: &str = "node";
    const NEEDED: &str = "a node that this user may open";
    let remedy = format!("sudo nvpoll bind {} --user NAME", drive.address);
    let paths = context.host.user_nodes(drive);
    let seen: Vec<_> = paths.iter().filter_map(|path| context.host.node_access(path)).collect();
    if seen.is_empty() {
        let remedy = "see that /dev is a devtmpfs, or that udev runs";
        return Finding::blocks(CHECK, "there is none in /dev", NEEDED, remedy);
    }
    let described = |node: &nvpoll_host::machine::NodeAccess| {
        format!("{} of user {}, mode {:o}", node.path.display(), node.uid, node.mode)
    };
    let found = seen.iter().map(described).collect::<Vec<_>>().join("; ");
    match seen.iter().any(|node| node.usable) {
        true => Finding::ok(CHECK, found, NEEDED),
        false => Finding::blocks(CHECK, found, NEEDED, remedy),
    }
}

fn group(context: &Context<'_>, drive: &Drive) -> Finding {
    const CHECK: &str = "iommu-group";
    const NEEDED: &str = "a group of its own, or one without devices that the kernel drives";
    let Some(group) = &drive.iommu_group else {
        let remedy = "see the finding \"iommu\"";
        return Finding::warning(CHECK, "none: no IOMMU is in front of it", NEEDED, remedy)
            .rules_out(&["vfio"]);
    };
    let domain = group.domain.as_deref().unwrap_or("not told");
    let mut found = format!("group {}, domain {domain}", group.id);
    if group.others.is_empty() {
        return Finding::ok(CHECK, format!("{found}, alone"), NEEDED);
    }
    let member = |address| match context.host.driver_of(address) {
        Some(driver) => format!("{address} on {driver}"),
        None => format!("{address} without driver"),
    };
    let others: Vec<String> = group.others.iter().map(|address| member(*address)).collect();
    found = format!("{found}, with {}", others.join(", "));
    match context.host.group_blockers(drive).as_slice() {
        [] => Finding::ok(CHECK, found, NEEDED),
        blockers => {
            let unbind = |one: &nvpoll_host::GroupBlocker| {
                let address = one.address;
                format!("echo {address} > /sys/bus/pci/devices/{address}/driver/unbind")
            };
            let steps: Vec<String> = blockers.iter().map(unbind).collect();
            let remedy = format!("{}; or another slot", steps.join("; "));
            Finding::warning(CHECK, found, NEEDED, remedy).rules_out(&["vfio"])
        }
    }
}

fn link(drive: &Drive) -> Finding {
    const CHECK: &str = "link";
    const NEEDED: &str = "the drive's own maximum";
    let text = |link: nvpoll_host::Link| format!("{} GT/s x{}", link.speed_gts, link.width);
    match (drive.link_now, drive.link_max) {
        (Some(now), Some(most)) if now.bytes_per_s() < most.bytes_per_s() => Finding::warning(
            CHECK,
            format!("{} of {}", text(now), text(most)),
            NEEDED,
            "another slot, or see why with lspci -vv (LnkSta); some drives slow down when idle",
        ),
        (Some(now), Some(_)) => Finding::ok(CHECK, text(now), NEEDED),
        (Some(now), None) => {
            Finding::not_known(CHECK, format!("{}, its maximum is not told", text(now)), NEEDED)
        }
        (None, _) => Finding::not_known(CHECK, "the kernel tells of no link", NEEDED),
    }
}

fn node(drive: &Drive) -> Finding {
    const CHECK: &str = "numa-node";
    const NEEDED: &str = "known, so that workers can be put near it (--cpus)";
    match drive.numa_node {
        Some(node) => Finding::ok(CHECK, format!("node {node}"), NEEDED),
        None => Finding::not_known(CHECK, "the firmware names none", NEEDED),
    }
}

/// What the kernel does with the I/Os of its own engines.
fn queue(settings: &QueueSettings) -> Vec<Finding> {
    let block = settings.node.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let set = |name: &str, value: &str| format!("echo {value} > /sys/block/{block}/queue/{name}");
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    let switch = |value: Option<bool>| value.map(|on| i64::from(on).to_string());
    let rows: [(&str, Option<String>, &[&str], &str); 5] = [
        ("scheduler", settings.scheduler.clone(), &["none"], "none, for the drive's own pace"),
        ("iostats", switch(settings.iostats), &["0"], "0: counting costs time for each I/O"),
        (
            "nomerges",
            number(settings.nomerges.map(i64::from)),
            &["2"],
            "2, so that I/Os stay as they were asked for",
        ),
        (
            "rq_affinity",
            number(settings.rq_affinity.map(i64::from)),
            &["1", "2"],
            "1 or 2: completions near their submitter",
        ),
        (
            "wbt_lat_usec",
            number(settings.wbt_lat_usec),
            &["0"],
            "0: buffered writes are not throttled",
        ),
    ];
    let mut findings: Vec<Finding> = rows
        .into_iter()
        .map(|(name, found, good, needed)| {
            let check = format!("{name} {block}");
            match (found, good.last()) {
                (Some(value), _) if good.contains(&value.as_str()) => {
                    Finding::ok(&check, value, needed)
                }
                (Some(value), Some(best)) => {
                    Finding::warning(&check, value, needed, set(name, best))
                }
                _ => Finding::not_known(&check, "the kernel does not tell", needed),
            }
        })
        .collect();
    let check = format!("io_poll {block}");
    let needed = "1, to poll the kernel's driver; see the finding \"poll-queues\"";
    findings.push(match settings.io_poll {
        Some(true) => Finding::ok(&check, "1", needed),
        Some(false) => Finding::warning(&check, "0", needed, "nvme.poll_queues=2, as said there"),
        None => Finding::not_known(&check, "the kernel does not tell", needed),
    });
    findings
}
