//! The promises that only a real kernel and a real controller can show, on the lab machine: QEMU's
//! NVMe drives behind an IOMMU, Linux's VFIO, nvme, io_uring and block paths (tools/lab).
//!
//! Each test boots machines of its own and prints what it checked. Built with `--features lab`,
//! since it needs QEMU and a kernel; `tools/test` sees to both.

mod bad_input;
mod commands;
mod compare;
mod data;
mod doctor;
mod in_use;
mod kernel_paths;
mod life_cycle;
mod machine;
mod metadata;
mod numa;
mod pattern;
mod precondition;
mod ratio;
mod review;
mod transports;
mod waiting;
