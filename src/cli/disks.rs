//! `list` on Windows, and what `bind` and `unbind` say there.

use super::Done;
use super::args::{BindArgs, Command, ListArgs, UnbindArgs};
use super::out::say;
use crate::failure::Failure;
use crate::workload::units::format_size;
use comfy_table::{Table, presets::NOTHING};
use nvpoll_windows::disk::{self, Disk, PartitionTable, Stack};
use nvpoll_windows::{Name, Win32};
use serde::Serialize;
use std::path::Path;

/// Nothing is ever taken here, so that nothing can be left behind.
pub fn tell_leftovers(_command: &Command) {}

/// What `--json` says of a disk.
#[derive(Serialize)]
struct Listed {
    path: String,
    model: Option<String>,
    serial: Option<String>,
    firmware: Option<String>,
    size_bytes: Option<u64>,
    sector_bytes: Option<u32>,
    nvme: Option<bool>,
    service: Option<String>,
    stack: Option<&'static str>,
    offline: Option<bool>,
    partition_table: Option<String>,
    uses: Vec<String>,
}

/// `nvpoll list`
pub fn list(args: &ListArgs) -> Done {
    let read = |name: &String| match Name::of(Path::new(name)) {
        Name::Disk(number) => Disk::read(&Win32, number)
            .map_err(|error| Failure::usage(format!("{name}: {error}; run it without a target"))),
        _ => Err(Failure::usage(format!(r"{name} is no disk; name one as \\.\PhysicalDrive1"))),
    };
    let disks = match args.targets.as_slice() {
        [] => disk::all(&Win32)
            .map_err(|error| Failure::failed(format!("the disks cannot be listed: {error}")))?,
        names => names.iter().map(read).collect::<Result<_, _>>()?,
    };
    let listed: Vec<Listed> = disks.into_iter().map(listed).collect();
    if args.json {
        let text = serde_json::to_string_pretty(&listed);
        say!("{}", text.map_err(|error| Failure::failed(error.to_string()))?)?;
        return Ok(0);
    }
    if listed.is_empty() {
        say!("no disk: Windows lists none; `nvpoll compare` runs on a soft drive")?;
        return Ok(0);
    }
    print_table(&listed)?;
    Ok(0)
}

fn listed(disk: Disk) -> Listed {
    let table = disk.table.map(|table| match table {
        PartitionTable::Mbr(count) => format!("MBR, {count} partitions"),
        PartitionTable::Gpt(count) => format!("GPT, {count} partitions"),
        PartitionTable::Raw => "none".to_owned(),
    });
    Listed {
        path: disk::path_of(disk.number).display().to_string(),
        uses: disk::uses(&Win32, &disk).iter().map(ToString::to_string).collect(),
        stack: disk.stack().map(|stack| match stack {
            Stack::Native => "native",
            Stack::NonNative => "non-native",
        }),
        model: disk.model,
        serial: disk.serial,
        firmware: disk.firmware,
        size_bytes: disk.size_bytes,
        sector_bytes: disk.sector_bytes,
        nvme: disk.is_nvme,
        service: disk.service,
        offline: disk.is_offline,
        partition_table: table,
    }
}

fn print_table(listed: &[Listed]) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([
        "disk",
        "model",
        "serial",
        "firmware",
        "size",
        "LBA",
        "NVMe",
        "service",
        "stack",
        "state",
        "partitions",
        "in use by",
    ]);
    let unknown = || "-".to_owned();
    let text = |text: &Option<String>| text.clone().unwrap_or_else(unknown);
    for disk in listed {
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let state = |offline: bool| if offline { "offline" } else { "online" }.to_owned();
        table.add_row([
            disk.path.clone(),
            text(&disk.model),
            text(&disk.serial),
            text(&disk.firmware),
            disk.size_bytes.map_or_else(unknown, format_size),
            disk.sector_bytes.map_or_else(unknown, |bytes| bytes.to_string()),
            disk.nvme.map_or_else(unknown, yes),
            text(&disk.service),
            disk.stack.map_or_else(unknown, str::to_owned),
            disk.offline.map_or_else(unknown, state),
            text(&disk.partition_table),
            if disk.uses.is_empty() { "nobody".to_owned() } else { disk.uses.join("\n") },
        ]);
    }
    table.lines().try_for_each(|line| say!("{}", line.trim_end()))
}

/// `nvpoll bind`
pub fn bind(args: &BindArgs) -> Done {
    Err(not_here("bind", &args.targets))
}

/// `nvpoll unbind`
pub fn unbind(args: &UnbindArgs) -> Done {
    Err(not_here("unbind", &args.targets))
}

fn not_here(command: &str, targets: &[String]) -> Failure {
    let target = targets.first().map_or(r"\\.\PhysicalDrive1", String::as_str);
    Failure::usage(format!(
        "`nvpoll {command}` hands drives to the userspace driver, not on Windows; measure Windows' own paths with `nvpoll compare {target}`, and the userspace driver on Linux"
    ))
}
