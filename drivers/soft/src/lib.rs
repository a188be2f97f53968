//! An NVMe controller in software.
